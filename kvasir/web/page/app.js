/**
 * The page: where one is, what is said of the server, and what is beside the conversation.
 * @module
 */
import { ApiError, isNewer, key, state } from './api.js';
import './chat.js';
import { show, toast } from './dialogs.js';
import { fill, find, h } from './dom.js';
import { when } from './format.js';
import { announce, session } from './session.js';
import { listen } from './shortcuts.js';
import * as store from './store.js';
import { exported, imported, matches } from './tree.js';

const NEWS = 5 * 60 * 1000;
/** Between two looks for a newer server, in milliseconds. */
const RETRY = 2000;

class App extends HTMLElement {
  connectedCallback() {
    this.chat = /** @type {import('./chat.js').Chat} */ (document.createElement('k-chat'));
    this.banner = h('div', { class: 'banner', role: 'alert', hidden: true });
    this.search = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search conversations', oninput: () => this.list() });
    this.heads = h('ul', { class: 'heads' });
    this.model = h('select', { 'aria-label': 'Model', onchange: () => session.choose(this.model.value) });
    this.menu = h('button', { type: 'button', class: 'quiet menu', 'aria-label': 'Conversations', 'aria-expanded': 'false', onclick: () => this.toggle() }, '☰');
    this.main = h('main', { id: 'main', tabindex: -1 });
    this.side = h('nav', { class: 'side', 'aria-label': 'Conversations' }, this.sideParts());
    this.append(this.side, h('div', { class: 'stage' }, h('header', { class: 'top' }, this.menu, this.model, this.links()), this.banner, this.main));
    addEventListener('hashchange', () => this.route());
    addEventListener('online', () => this.start());
    document.addEventListener('visibilitychange', () => !document.hidden && this.lookForNews());
    setInterval(() => !document.hidden && this.lookForNews(), NEWS);
    this.addEventListener('trouble', (event) => this.trouble(/** @type {any} */ (event).detail));
    session.addEventListener('change', () => this.showModels());
    store.news.onmessage = ({ data }) => this.heard(data);
    listen(this.shortcuts());
    this.route();
    this.start();
  }

  sideParts() {
    return [
      h('div', { class: 'brand' }, h('strong', {}, 'Kvasir')),
      h('a', { class: 'new', href: '#/' }, 'New conversation'),
      this.search,
      this.heads,
      h('div', { class: 'foot' },
        h('button', { type: 'button', class: 'quiet', onclick: () => this.exportAll() }, 'Export'),
        h('button', { type: 'button', class: 'quiet', onclick: () => this.importFile() }, 'Import'),
        h('button', { type: 'button', class: 'quiet', onclick: () => this.askKey() }, 'Key')),
    ];
  }

  links() {
    return h('div', { class: 'links' }, h('a', { href: '#/compare' }, 'Compare'), h('a', { href: '#/dashboard' }, 'Dashboard'));
  }

  /** @returns {import('./shortcuts.js').Shortcut[]} */
  shortcuts() {
    const go = (/** @type {string} */ hash) => () => { location.hash = hash; };
    return [
      { keys: 'Alt+N', says: 'New conversation', does: go('#/') },
      { keys: 'Alt+D', says: 'Dashboard', does: go('#/dashboard') },
      { keys: 'Alt+C', says: 'Compare two settings', does: go('#/compare') },
      { keys: '/', says: 'Search conversations', does: () => { this.toggle(true); this.search.focus(); } },
      { keys: 'Alt+W', says: 'Write', does: () => this.chat?.composer.area.focus() },
      { keys: 'Alt+S', says: 'Settings', does: () => { if (this.chat) this.chat.panel.open = !this.chat.panel.open; } },
      { keys: 'Escape', says: 'Stop the answer', does: () => this.chat?.stop() },
      { keys: 'j', says: 'Next message', does: () => this.step(1) },
      { keys: 'k', says: 'Message before', does: () => this.step(-1) },
    ];
  }

  /** To another message. @param {number} by */
  step(by) {
    const all = [...this.querySelectorAll('.message')];
    const at = all.findIndex((each) => each.contains(document.activeElement));
    /** @type {any} */ (all[at < 0 ? all.length - 1 : at + by])?.focus();
  }

  /** @param {boolean} [isOpen] */
  toggle(isOpen = !this.side.classList.contains('open')) {
    this.side.classList.toggle('open', isOpen);
    this.menu.setAttribute('aria-expanded', String(isOpen));
  }

  /** Asks the server about itself until it says something. */
  async start() {
    try {
      await session.open();
      this.say(null);
    } catch (error) {
      const isKnown = error instanceof ApiError && [0, 401, 503].includes(error.status);
      if (isKnown) this.trouble(error);
      else this.say(/** @type {Error} */ (error).message);
    }
  }

  async route() {
    const [, place = '', id = null] = location.hash.split('/');
    this.toggle(false);
    if (place === 'dashboard') await this.lazily('./dashboard.js', 'k-dashboard');
    else if (place === 'compare') await this.lazily('./compare.js', 'k-compare');
    else await this.openChat(place === 'c' ? id : null);
    for (const link of this.querySelectorAll('a[href^="#/"]')) {
      if (link.getAttribute('href') === (location.hash || '#/')) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
  }

  /** A part of the page that is loaded when it is wanted. @param {string} file @param {string} tag */
  async lazily(file, tag) {
    try {
      await import(file);
    } catch {
      this.say('The server has another version of this page: load it again.', 'Reload', () => location.reload());
      return;
    }
    this.main.replaceChildren(document.createElement(tag));
    this.list();
  }

  /** @param {string | null} id */
  async openChat(id) {
    const { chat } = this;
    if (!chat) return;
    if (this.main.firstChild !== chat) this.main.replaceChildren(chat);
    if (id === null || chat.head.id !== id || !chat.conversation.messages.size) {
      if (!(await chat.open(id))) {
        toast('This conversation is not in this browser.');
        location.replace('#/');
        return;
      }
      chat.composer.area.focus();
    }
    document.title = chat.head.title ? `${chat.head.title} – Kvasir` : 'Kvasir';
    this.list();
  }

  showModels() {
    const models = session.facts?.models ?? [];
    fill(this.model, models.map((each) => h('option', { value: each.id, selected: each.id === session.model }, each.id)));
    this.model.disabled = models.length < 2;
  }

  /** The conversations, newest first, of those that have what is searched. */
  async list() {
    const query = this.search.value.trim();
    const heads = query ? (await store.everything()).filter((each) => matches(query, each.head, each.messages.values())).map((each) => each.head) : await store.allHeads();
    fill(this.heads, heads.map((head) => this.entry(head)));
  }

  /** @param {import('./tree.js').Head} head */
  entry(head) {
    const href = `#/c/${head.id}`;
    return h('li', {},
      h('a', { href, 'aria-current': location.hash === href ? 'page' : null }, h('span', { dir: 'auto' }, head.title || 'Untitled'), h('time', {}, when(head.updated))),
      h('button', { type: 'button', class: 'quiet', 'aria-label': `Delete ${head.title || 'this conversation'}`, onclick: () => this.forget(head.id) }, '×'));
  }

  /** @param {string} id */
  async forget(id) {
    const found = await store.load(id);
    if (!found) return;
    this.chat?.gone.add(id);
    await store.remove(found);
    if (location.hash === `#/c/${id}`) location.hash = '#/';
    this.list();
    toast('Conversation deleted.', 'Undo', async () => {
      this.chat?.gone.delete(id);
      await store.save(found.head, [...found.messages.values()]);
      this.list();
    });
  }

  /** What another tab did. @param {{ saved?: string, removed?: string }} told */
  async heard(told) {
    this.list();
    const { chat } = this;
    if (told.saved && chat && told.saved === chat.head.id) await chat.refresh();
  }

  async exportAll() {
    const text = JSON.stringify(exported(await store.everything()), null, 1);
    const href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
    h('a', { href, download: 'kvasir-conversations.json' }).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
  }

  importFile() {
    const input = h('input', { type: 'file', accept: '.json,application/json', onchange: async () => {
      try {
        const found = imported(JSON.parse(await input.files[0].text()));
        for (const each of found) await store.save(each.head, [...each.messages.values()]);
        this.list();
        toast(`${found.length} conversations imported.`);
      } catch (error) {
        toast(`Not imported: ${/** @type {Error} */ (error).message}`);
      }
    } });
    input.click();
  }

  /** @param {string} [why] */
  askKey(why = 'It stays in this tab and goes nowhere but to this server.') {
    const input = h('input', { type: 'password', id: 'key', autocomplete: 'off', value: key.value });
    const dialog = show('API key', h('form', {
      class: 'edit',
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        key.value = input.value.trim();
        dialog.close();
        this.start();
      },
    }, h('p', {}, why), h('label', { for: 'key' }, 'Key'), input, h('button', { type: 'submit', class: 'primary' }, 'Use it')));
    input.focus();
  }

  /** @param {any} error */
  async trouble(error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) {
      this.say('The server wants a key.', 'Enter it', () => this.askKey());
      if (!find('dialog')) this.askKey('The server wants an API key. It stays in this tab and goes nowhere but to this server.');
    } else if (error.status === 0 && error.code !== 'storage') {
      const word = await state();
      const sentence = word === 'gone' ? 'The server does not answer. Conversations can be read; answers go on when it is back.' : `The server says: ${word}.`;
      this.say(sentence, 'Try now', () => this.start());
      this.retry();
    } else if (error.code === 'storage') {
      this.say(error.message);
    } else if (error.status === 503) {
      this.say(error.message);
      this.retry();
    }
  }

  retry() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.start(), RETRY);
  }

  async lookForNews() {
    if (await isNewer()) this.say('The server has a newer page than this.', 'Reload', () => location.reload());
  }

  /** @param {string | null} sentence null: all is well @param {string} [label] @param {() => void} [act] */
  say(sentence, label, act) {
    const was = this.banner.textContent ?? '';
    this.banner.hidden = sentence === null;
    if (sentence === null) {
      if (was) announce('The server answers.');
      return fill(this.banner);
    }
    if (!was.startsWith(sentence)) fill(this.banner, sentence, label && act ? h('button', { type: 'button', onclick: act }, label) : null);
  }
}

customElements.define('k-app', App);
