// Fills a conversation with many messages, and then an answer of many tokens, as fast as they would come.
async ([nMessages, nTokens, perSecond]) => {
  const base = document.querySelector('script').src;
  const tree = await import(new URL('tree.js', base).href);
  const store = await import(new URL('store.js', base).href);
  const chat = document.querySelector('k-chat');
  let conversation = tree.newConversation();
  const made = [];
  let parent = null;
  for (let i = 0; i < nMessages; i++) {
    const content = i % 2 ? `Answer ${i} with **bold** words.\n\n- one\n- two\n\n\`\`\`js\nlet x = ${i};\n\`\`\`` : `Question ${i}?`;
    const message = tree.newMessage(conversation, parent, { role: i % 2 ? 'assistant' : 'user', content, time: i });
    conversation.messages.set(message.id, message);
    made.push(message);
    parent = message.id;
  }
  conversation = tree.selecting(conversation, parent);
  await store.save(conversation.head, made);
  const begun = performance.now();
  await chat.open(conversation.head.id);
  const opened = performance.now() - begun;

  const target = chat.target(parent, { content: '' });
  chat.conversation = tree.withMessage(chat.conversation, target);
  chat.running.set(target.id, { stops: new AbortController(), message: target });
  chat.render();
  const frames = [];
  const long = [];
  new PerformanceObserver((list) => long.push(...list.getEntries().map((each) => each.duration))).observe({ type: 'longtask' });
  const [view] = chat.viewsOf([target]);
  const show = view.show.bind(view);
  view.show = () => { const at = performance.now(); show(); frames.push(performance.now() - at); };
  const words = ['some ', '*words* ', 'of ', 'an ', '`answer` ', 'that ', 'goes ', 'on.\n\n', '- with ', 'items\n', '## Heads\n\n'];
  const start = performance.now();
  let n = 0;
  while (n < nTokens) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    const due = Math.min(nTokens, Math.floor(((performance.now() - start) / 1000) * perSecond));
    for (; n < due; n++) target.content += words[(n * 7) % words.length];
    chat.heard([target], chat.head);
  }
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  frames.sort((a, b) => a - b);
  const shown = view.body.textContent.length;
  chat.running.delete(target.id);
  return { opened, p50: frames[Math.floor(frames.length / 2)], p95: frames[Math.floor(frames.length * 0.95)], most: frames.at(-1), frames: frames.length, long, shown, nodes: document.querySelectorAll('*').length };
}
