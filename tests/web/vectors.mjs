// Texts that a model may say and that must not become anything but text and harmless nodes.
const TAGS = ['script', 'img', 'svg', 'iframe', 'object', 'embed', 'style', 'link', 'meta', 'base', 'form', 'video', 'audio', 'math', 'details', 'template', 'x-y', 'a'];
const SCHEMES = ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', 'java\tscript:alert(1)', '&#106;avascript:alert(1)', 'javascript&colon;alert(1)', '\u0001javascript:alert(1)',
  'data:text/html,<script>alert(1)</script>', 'data:image/svg+xml;base64,PHN2Zy8+', 'vbscript:x', 'file:///etc/passwd', 'blob:http://a/b', '//evil.example/x', 'https://evil.example/x.png', ' javascript:1', 'view-source:x'];
const WRAPS = [(x) => x, (x) => `[a](${x})`, (x) => `[a](<${x}>)`, (x) => `![a](${x})`, (x) => `<${x}>`, (x) => `[a][r]\n\n[r]: ${x}`, (x) => `[a]: ${x} "t"\n\n[a]`,
  (x) => `\`\`\`${x}\n${x}\n\`\`\``, (x) => `| ${x} |\n|---|\n| ${x} |`, (x) => `> - ${x}`, (x) => `# ${x}`, (x) => `[![a](${x})](${x})`, (x) => `*${x}*`];
const HTML = TAGS.flatMap((tag) => [`<${tag} src=x onerror=alert(1)>`, `<${tag}>alert(1)</${tag}>`, `</${tag}><${tag} href=javascript:alert(1) onload=alert(1)/>`]);

export const VECTORS = [...SCHEMES, ...HTML].flatMap((x) => WRAPS.map((wrap) => wrap(x)));
