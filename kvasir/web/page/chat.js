/**
 * A conversation: what was said, what is being said, and where one writes.
 * @module
 */
import { chatTask, textTask } from './answer.js';
import { ApiError, curlOf } from './api.js';
import { Composer } from './composer.js';
import { copy, show, toast } from './dialogs.js';
import { arrange, fill, find, h } from './dom.js';
import { promptDialog } from './inspector.js';
import { paint } from './markdown/highlight.js';
import { MessageView } from './message.js';
import { Watch, patiently } from './patience.js';
import { announce, session } from './session.js';
import { beginning, settingsForm, summary } from './settings.js';
import * as store from './store.js';
import { prefix } from './tokens.js';
import * as tree from './tree.js';
import { whyDialog } from './why.js';

/** @typedef {import('./tree.js').Message} Message */

const PAGE = 60;
/** Messages that are shown at first; earlier ones come as one scrolls up. */
const SAVE = 1000;
/** Between two savings of an answer that is coming, in milliseconds. */
const NEAR = 80;
/** Of the foot, in pixels: who is there stays there. */
const SETTINGS = 'kvasir.settings';

export class Chat extends HTMLElement {
  constructor() {
    super();
    this.conversation = tree.newConversation(beginning(localStorage.getItem(SETTINGS)));
    /** @type {Map<string, MessageView>} */
    this.views = new Map();
    this.limit = PAGE;
    /** When something was kept last. */
    this.saved = 0;
    /** Answers that are coming, of this conversation and others, each with what stops it.
     * @type {Map<string, { stops: AbortController, message: Message }>} */
    this.running = new Map();
    /** Conversations that were deleted: what still comes is not kept. @type {Set<string>} */
    this.gone = new Set();
    this.composer = new Composer({ send: (text, files) => this.send(text, files), stop: () => this.stop() });
    this.earlier = h('button', { type: 'button', class: 'quiet earlier', onclick: () => this.more() }, 'Earlier messages');
    this.list = h('div', { class: 'messages', role: 'log', 'aria-label': 'Conversation', 'aria-live': 'off' });
    this.scroller = h('div', { class: 'scroller', role: 'region', 'aria-label': 'Messages', tabindex: 0 }, this.earlier, this.list);
    this.wait = h('p', { class: 'wait', role: 'status' });
    this.system = h('textarea', { rows: 3, 'aria-label': 'System prompt', placeholder: 'System prompt', oninput: () => this.setHead({ system: this.system.value }) });
    this.fields = h('div');
    this.line = h('span');
    this.panel = h('details', { class: 'panel', ontoggle: () => this.panel.open && this.showSettings() }, h('summary', {}, 'Settings: ', this.line), this.system, this.fields);
    /** @type {any} */
    this.does = {
      edit: (/** @type {Message} */ m) => this.edit(m),
      again: (/** @type {Message} */ m) => this.answer(m.parent),
      goOn: (/** @type {Message} */ m) => this.goOn(m),
      remove: (/** @type {Message} */ m) => this.removeMessage(m),
      turn: (/** @type {Message} */ m, /** @type {number} */ by) => this.turn(m, by),
      why: (/** @type {Message} */ m) => whyDialog(m.response ?? ''),
      inspect: (/** @type {Message} */ m) => promptDialog(this.request(m.parent), m.stats),
      curl: (/** @type {Message} */ m) => this.curl(m),
      branch: (/** @type {Message} */ m, /** @type {number} */ at, /** @type {any} */ top) => this.branch(m, at, top),
    };
  }

  connectedCallback() {
    if (this.firstChild) return;
    this.append(this.scroller, this.wait, this.panel, this.composer.node);
    session.addEventListener('change', () => this.panel.open && this.showSettings());
    new IntersectionObserver(([seen]) => seen.isIntersecting && this.more(), { root: this.scroller }).observe(this.earlier);
  }

  get head() {
    return this.conversation.head;
  }

  /** @param {string | null} id of a conversation; null: a new one @returns {Promise<boolean>} whether it is there */
  async open(id) {
    const found = id ? await store.load(id) : tree.newConversation(beginning(localStorage.getItem(SETTINGS)));
    if (!found) return false;
    this.conversation = this.withRunning(found);
    this.limit = PAGE;
    this.views.clear();
    this.system.value = this.head.system;
    this.composer.open(id ?? 'new');
    this.composer.busy(this.isBusy);
    this.wait.textContent = '';
    this.render();
    this.line.textContent = summary(this.head.settings);
    if (this.panel.open) this.showSettings();
    this.foot();
    return true;
  }

  /** What another tab saved of it. */
  async refresh() {
    const found = await store.load(this.head.id);
    if (!found || this.isBusy) return;
    this.conversation = found;
    this.views.clear();
    this.render();
  }

  get isBusy() {
    return [...this.running.values()].some(({ message }) => message.conversation === this.head.id);
  }

  /** With the answers that are coming in the place of what was kept of them. @param {import('./tree.js').Conversation} conversation */
  withRunning(conversation) {
    for (const { message } of this.running.values()) {
      if (message.conversation === conversation.head.id) conversation.messages.set(message.id, message);
    }
    return conversation;
  }

  /** Shows the path to the selected leaf: views of messages that were there before stay. */
  render() {
    const path = tree.pathTo(this.conversation);
    const shown = path.slice(-this.limit);
    this.earlier.hidden = shown.length === path.length;
    const views = shown.map((message) => this.viewOf(message));
    arrange(this.list, views.length ? views.map((view) => view.node) : [welcome()]);
    paint(this.list);
  }

  /** @param {Message} message */
  viewOf(message) {
    const siblings = tree.siblingsOf(this.conversation, message);
    const index = siblings.findIndex((each) => each.id === message.id);
    const name = `${message.id} ${index} ${siblings.length}`;
    let view = this.views.get(name);
    if (!view) {
      view = new MessageView(message, { index, of: siblings.length }, this.does);
      this.views.set(name, view);
      if (this.running.has(message.id)) view.live(true);
    }
    return view;
  }

  more() {
    if (this.earlier.hidden) return;
    const height = this.scroller.scrollHeight;
    this.limit += PAGE;
    this.render();
    this.scroller.scrollTop += this.scroller.scrollHeight - height;
  }

  /** @param {Partial<import('./tree.js').Head>} values */
  setHead(values) {
    this.conversation = { ...this.conversation, head: { ...this.head, ...values } };
    if (this.conversation.messages.size) this.keep([]);
  }

  showSettings() {
    fill(this.fields, settingsForm(this.head.settings, (settings) => {
      localStorage.setItem(SETTINGS, JSON.stringify(settings));
      this.line.textContent = summary(settings);
      this.setHead({ settings });
    }));
  }

  /** @param {string} text @param {import('./tree.js').Attachment[]} files */
  async send(text, files) {
    const said = tree.newMessage(this.conversation, this.head.selected, { content: text, attachments: files });
    const isFirst = !this.conversation.messages.size;
    this.conversation = tree.withMessage(this.conversation, said);
    await this.keep([said]);
    if (isFirst) this.composer.rename(this.head.id);
    if (isFirst) location.replace(`#/c/${this.head.id}`);
    await this.answer(said.id);
  }

  /** What the server is sent for an answer to `parent`. @param {string | null} parent */
  request(parent) {
    return tree.toRequest(this.head.system, tree.pathTo(this.conversation, parent));
  }

  /** One or several new answers to a message. @param {string | null} parent */
  async answer(parent) {
    if (!session.facts) await session.open().catch(() => {}); // it says itself why it cannot answer
    const { n = 1, ...settings } = this.head.settings;
    const time = Date.now(); // they are shown in the order of their times
    const targets = Array.from({ length: n }, (_, i) => this.target(parent, { time: time + i }));
    const first = targets[0];
    for (const target of [...targets].reverse()) this.conversation = tree.withMessage(this.conversation, target);
    this.conversation = tree.selecting(this.conversation, first.id);
    await this.stream(chatTask(this.request(parent), { model: session.model, ...settings }, targets));
  }

  /** @param {string | null} parent @param {Partial<Message>} [said] */
  target(parent, said = {}) {
    return tree.newMessage(this.conversation, parent, { role: 'assistant', model: session.model, settings: this.head.settings, ...said });
  }

  /** An answer that was cut goes on: from its own ids where they are known. @param {Message} message */
  async goOn(message) {
    const { n: _, ...settings } = this.head.settings;
    const asked = { model: session.model, ...settings };
    message.error = undefined;
    message.finish = undefined;
    const isKnown = message.promptIds && message.ids?.length;
    const task = isKnown
      ? textTask([...(message.promptIds ?? []), ...(message.ids ?? [])], asked, message)
      : chatTask([...this.request(message.parent), { role: 'assistant', content: message.content }], asked, [message]);
    if (!isKnown) Object.assign(task.body, { add_generation_prompt: false, continue_final_message: true });
    const { promptIds, stats } = message;
    message.stats = undefined;
    await this.stream(task);
    if (promptIds) message.promptIds = promptIds;
    message.stats ??= stats;
  }

  /** Another answer, from exactly the ids before token `at`. @param {Message} message @param {number} at @param {import('./tree.js').Top} top */
  async branch(message, at, top) {
    const { n: _, ...settings } = this.head.settings;
    const { text, ids } = await prefix(message, at, top);
    const tops = [...(message.tops ?? []).slice(0, at), [top]];
    const target = this.target(message.parent, { content: text, ids, tops, promptIds: message.promptIds });
    this.conversation = tree.withMessage(this.conversation, target);
    await this.stream(textTask([...(message.promptIds ?? []), ...ids], { model: session.model, tops: session.facts?.max_logprobs && 5, ...settings }, target));
    target.promptIds = message.promptIds;
    await this.keep([target]);
  }

  /** @param {import('./answer.js').Task} task */
  async stream(task) {
    const stops = new AbortController();
    const { targets } = task;
    const { head } = this;
    for (const message of targets) this.running.set(message.id, { stops, message });
    this.render();
    this.composer.busy(true);
    this.foot();
    announce('The answer is coming.');
    const say = (/** @type {string} */ sentence) => { this.wait.textContent = sentence; };
    const watch = new Watch(say);
    try {
      await patiently(task, stops.signal, () => { watch.heard(); this.heard(targets, head); }, say);
      announce(`Answered. ${targets[0].content.slice(0, 300)}`);
    } catch (error) {
      this.failed(targets, /** @type {any} */ (error), stops.signal.aborted);
    } finally {
      watch.end();
      for (const target of targets) this.running.delete(target.id);
      await this.keep(targets, head);
      this.composer.busy(this.isBusy);
      for (const view of this.viewsOf(targets)) view.live(false);
      paint(this.list);
    }
  }

  /** Shows what came, and keeps it now and then. @param {Message[]} targets @param {import('./tree.js').Head} head */
  heard(targets, head) {
    for (const view of this.viewsOf(targets)) view.changed();
    const now = performance.now();
    if (now - this.saved > SAVE) {
      this.saved = now;
      this.keep(targets, head);
    }
    this.follow();
  }

  /** @param {Message[]} targets */
  viewsOf(targets) {
    const ids = new Set(targets.map((each) => each.id));
    return [...this.views.values()].filter((view) => ids.has(view.message.id));
  }

  /** @param {Message[]} targets @param {any} error @param {boolean} isStopped */
  failed(targets, error, isStopped) {
    for (const target of targets) {
      target.finish = 'stopped';
      if (!isStopped) target.error = error.message;
      target.code = error.code;
    }
    this.foot();
    if (isStopped) return announce('Stopped.');
    announce(error.message);
    this.dispatchEvent(new CustomEvent('trouble', { detail: error, bubbles: true }));
  }

  stop() {
    for (const { stops, message } of this.running.values()) {
      if (message.conversation === this.head.id) stops.abort();
    }
  }

  /** At the foot, if that is where one was. */
  follow() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (scrollHeight - scrollTop - clientHeight < NEAR) requestAnimationFrame(() => this.foot(0));
  }

  /** Twice more, as what comes into view gets its true height. @param {number} [again] */
  foot(again = 2) {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    if (again) requestAnimationFrame(() => this.foot(again - 1));
  }

  /** @param {Message[]} said @param {import('./tree.js').Head} [head] of their conversation, which may not be the one that is shown */
  async keep(said, head = this.head) {
    try {
      if (this.gone.has(head.id)) return;
      const isHere = head.id === this.head.id;
      const kept = isHere ? said.filter((each) => this.conversation.messages.has(each.id)) : said;
      await store.save(isHere ? this.head : head, kept);
    } catch (error) {
      const detail = new ApiError(0, store.isFull(error) ? 'This browser has no space left: export conversations, and delete some.' : `Not kept: ${/** @type {Error} */ (error).message}`, 'storage');
      this.dispatchEvent(new CustomEvent('trouble', { detail, bubbles: true }));
    }
  }

  /** @param {Message} message */
  edit(message) {
    const area = h('textarea', { 'aria-label': 'Edit the message', rows: Math.min(12, message.content.split('\n').length + 1) }, message.content);
    const dialog = show('Edit and ask again', h('form', {
      class: 'edit',
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        dialog.close();
        this.ask(message, area.value);
      },
    }, area, h('button', { type: 'submit', class: 'primary' }, 'Send')));
    area.focus();
  }

  /** A message said otherwise: beside the first, which stays. @param {Message} message @param {string} content */
  async ask(message, content) {
    const said = tree.newMessage(this.conversation, message.parent, { content, attachments: message.attachments });
    this.conversation = tree.withMessage(this.conversation, said);
    await this.keep([said]);
    await this.answer(said.id);
  }

  /** @param {Message} message @param {number} by */
  turn(message, by) {
    const siblings = tree.siblingsOf(this.conversation, message);
    const other = siblings[siblings.findIndex((each) => each.id === message.id) + by];
    if (!other) return;
    this.setHead({ selected: tree.leafBelow(this.conversation, other.id) });
    this.render();
    find(`[data-id="${other.id}"]`, this)?.focus({ preventScroll: true });
  }

  /** @param {Message} message */
  async removeMessage(message) {
    const before = this.conversation;
    const [kept, gone] = tree.without(before, message.id);
    for (const each of gone) this.running.get(each.id)?.stops.abort();
    this.conversation = kept;
    this.render();
    await store.removeMessages(kept.head, gone);
    toast(gone.length > 1 ? `${gone.length} messages deleted.` : 'Message deleted.', 'Undo', async () => {
      await store.save(before.head, gone);
      if (this.head.id === before.head.id) {
        this.conversation = before;
        this.render();
      }
    });
  }

  /** @param {Message} message */
  async curl(message) {
    const { n: _, ...settings } = message.settings ?? this.head.settings;
    const { path, body } = chatTask(this.request(message.parent), { model: message.model ?? session.model, ...settings }, [message]);
    await copy(curlOf(path, body));
    toast('Copied: the same request for a shell.');
  }
}

function welcome() {
  return h('div', { class: 'welcome' }, h('h1', {}, 'What would you ask Kvasir?'), h('p', {}, 'He was so wise that no question was put to him that he had no answer to. Conversations stay in this browser.'));
}

customElements.define('k-chat', Chat);
