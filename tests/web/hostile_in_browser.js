async ([version, vectors]) => {
  const { parse } = await import(`/ui/${version}/markdown/stream.js`);
  const { render } = await import(`/ui/${version}/markdown/render.js`);
  const allowed = new Set('P BLOCKQUOTE UL OL LI EM STRONG DEL A SPAN CODE PRE DIV BR HR TABLE THEAD TBODY TR TH TD BUTTON H3 H4 H5 H6'.split(' '));
  const foreign = [];
  window.acted = false;
  window.alert = () => { window.acted = true; };
  for (const vector of vectors) {
    const body = document.createElement('div');
    document.body.appendChild(body);
    render(body, parse(vector));
    for (const each of body.querySelectorAll('*')) {
      const isForeign = !allowed.has(each.tagName) || each.namespaceURI !== 'http://www.w3.org/1999/xhtml';
      const acts = [...each.attributes].some((one) => /^on|^src$|^style$/.test(one.name)) || (each.href && !/^(https?|mailto|blob):/.test(each.href));
      if (isForeign || acts) foreign.push(vector);
    }
    body.remove();
  }
  await new Promise((resolve) => setTimeout(resolve, 300));
  return { n: vectors.length, foreign, acted: window.acted };
}
