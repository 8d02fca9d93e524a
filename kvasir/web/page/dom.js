/**
 * The only place that makes nodes. Tags and attributes come from this list; text is always text.
 * @module
 */

const SVG = new Set(['svg', 'path', 'rect', 'line', 'polyline', 'g', 'text', 'title']);
const HTML = new Set(
  ('a article aside blockquote br button caption code col dd del details dialog div dl dt em ' +
    'fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr img input kbd label legend li ' +
    'main mark menu nav ol optgroup option output p pre progress search section select small span ' +
    'strong sub summary table tbody td textarea tfoot th thead time tr ul').split(' '),
);
const ATTRIBUTES = new Set(
  ('accept alt aria-atomic aria-busy aria-controls aria-current aria-describedby aria-expanded ' +
    'aria-hidden aria-keyshortcuts aria-label aria-labelledby aria-live aria-pressed aria-selected ' +
    'autocomplete autofocus checked class cols colspan d data-id data-kind dir disabled download ' +
    'enterkeyhint fill for height hidden href id inputmode lang list max maxlength min multiple name open ' +
    'placeholder points preserveAspectRatio readonly rel reversed role rows scope selected size ' +
    'spellcheck src start step stroke tabindex target title type value viewBox width x x1 x2 y y1 y2')
    .split(' '),
);

/** @typedef {Node | string | number | null | undefined | false | any[]} Child */

/**
 * An element. `props`: attributes by their names, and listeners as `onclick` and the like, which
 * are functions. What is null, undefined or false is left out.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...Child} children
 * @returns {any}
 */
export function h(tag, props = {}, ...children) {
  const isSvg = SVG.has(tag);
  if (!isSvg && !HTML.has(tag)) throw new Error(`no element ${tag} here`);
  const node = isSvg
    ? document.createElementNS('http://www.w3.org/2000/svg', tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) {
      if (typeof value !== 'function') throw new Error(`${name} must be a function`);
      node.addEventListener(name.slice(2), value);
    } else {
      attribute(node, name, value);
    }
  }
  append(node, children);
  return node;
}

/** @param {any} node @param {string} name @param {any} value */
function attribute(node, name, value) {
  if (!ATTRIBUTES.has(name)) throw new Error(`no attribute ${name} here`);
  if (name === 'href' && !isSafe(String(value)) && !/^(#|blob:)/.test(value)) throw new Error('no such address here');
  if (name === 'src' && !String(value).startsWith('blob:')) throw new Error('nothing is fetched');
  node.setAttribute(name, value === true ? '' : String(value));
}

/** @param {Node} node @param {Child[]} children */
function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child);
    else if (child instanceof Node) node.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) {
      node.appendChild(document.createTextNode(String(child)));
    }
  }
}

/** Puts `children` in the place of what `node` has. @param {Element} node @param {...Child} children */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

/** Whether what somebody else wrote may lead there: to the web, or to a mail address. */
export function isSafe(/** @type {string} */ href) {
  return /^(https?:\/\/|mailto:)/i.test(href);
}

/** The element that `selector` finds. @param {string} selector @param {ParentNode} [root] @returns {any} */
export function find(selector, root = document) {
  return root.querySelector(selector);
}

/** Brings the children of `parent` to `nodes`, moving no more of them than need be. @param {Element} parent @param {Node[]} nodes */
export function arrange(parent, nodes) {
  nodes.forEach((each, i) => {
    const there = parent.childNodes[i] ?? null;
    if (there !== each) parent.insertBefore(each, there);
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild?.remove();
}
