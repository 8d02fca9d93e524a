// Nodes of the page's Markdown as CommonMark's HTML, for comparisons.
const escaped = (text) =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
const words = (node) => (node.s ?? (node.t === 'soft' || node.t === 'break' ? '\n' : '')) + (node.c ?? []).map(words).join('');
const TAGS = { p: 'p', quote: 'blockquote', item: 'li', em: 'em', strong: 'strong', del: 's', row: 'tr' };

export function html(nodes) {
  return nodes.map(one).join('');
}

function one(node) {
  const inner = html(node.c ?? []);
  const title = node.title ? ` title="${escaped(node.title)}"` : '';
  switch (node.t) {
    case 'text':
      return escaped(node.s);
    case 'soft':
      return '\n';
    case 'break':
      return '<br />\n';
    case 'hr':
      return '<hr />';
    case 'tight':
      return inner;
    case 'heading':
      return `<h${node.level}>${inner}</h${node.level}>`;
    case 'code': {
      if (node.info === undefined) return `<code>${escaped(node.s)}</code>`;
      const name = node.info.split(/\s+/)[0];
      return `<pre><code${name ? ` class="language-${escaped(name)}"` : ''}>${escaped(node.s)}</code></pre>`;
    }
    case 'list': {
      const tag = node.isOrdered ? 'ol' : 'ul';
      const start = node.isOrdered && node.start !== 1 ? ` start="${node.start}"` : '';
      return `<${tag}${start}>${inner}</${tag}>`;
    }
    case 'link':
      return `<a href="${escaped(node.href)}"${title}>${inner}</a>`;
    case 'image':
      return `<img src="${escaped(node.href)}" alt="${escaped((node.c ?? []).map(words).join(''))}"${title} />`;
    case 'table':
      return `<table><thead>${html(node.c.slice(0, 1))}</thead>${node.c.length > 1 ? `<tbody>${html(node.c.slice(1))}</tbody>` : ''}</table>`;
    case 'cell': {
      const tag = node.isHead ? 'th' : 'td';
      return `<${tag}${node.align ? ` style="text-align:${node.align}"` : ''}>${inner}</${tag}>`;
    }
    default:
      return `<${TAGS[node.t]}>${inner}</${TAGS[node.t]}>`;
  }
}
