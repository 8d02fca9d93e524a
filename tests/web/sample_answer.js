async () => {
  const chat = document.querySelector('k-chat');
  const view = [...chat.views.values()].at(-1);
  view.message.reasoning = 'The user greets.\nI answer.';
  view.message.content = [
    'Photosynthesis turns *light* into **sugar**. In short:', '',
    '1. Chlorophyll absorbs light.', '2. Water is split: `2 H2O → O2 + 4 H+`.', '   - oxygen leaves', '', '| step | where |', '|:--|--:|', '| light | thylakoid |', '| Calvin | stroma |', '',
    '```python', 'def leaf(light: float) -> str:', '    # more light, more sugar', '    return "sugar" * int(light)', '```', '', '> A quotation, and a [link](https://example.org).', '', '![a leaf](https://example.org/leaf.png)',
  ].join('\n');
  view.show();
  const { paint } = await import(new URL('markdown/highlight.js', document.querySelector('script').src).href);
  paint(chat.list);
}
