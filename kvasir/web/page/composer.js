/**
 * Where a message is written: text, files, and the button that sends or stops.
 * @module
 */
import { fill, h } from './dom.js';
import { size } from './format.js';
import { session } from './session.js';

/** @typedef {import('./tree.js').Attachment} Attachment */

const MAX_TEXT = 512 * 1024;
const IMAGES = /^image\/(png|jpeg|webp|gif)$/;
const DRAFT = 'kvasir.draft.';

export class Composer {
  /** @param {{ send: (text: string, files: Attachment[]) => void, stop: () => void }} does */
  constructor(does) {
    this.does = does;
    /** @type {Attachment[]} */
    this.files = [];
    this.draft = '';
    this.isBusy = false;
    this.area = h('textarea', {
      id: 'composer',
      rows: 1,
      placeholder: 'Ask something',
      'aria-label': 'Message',
      enterkeyhint: 'send',
      oninput: () => this.typed(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event),
      onpaste: (/** @type {ClipboardEvent} */ event) => this.pasted(event),
    });
    this.picker = h('input', { type: 'file', multiple: true, class: 'unseen', tabindex: -1, 'aria-label': 'Files', onchange: () => this.picked() });
    this.list = h('ul', { class: 'files', 'aria-label': 'Attached files' });
    this.note = h('p', { class: 'note', role: 'alert' });
    this.button = h('button', { type: 'submit', class: 'primary' }, 'Send');
    const attach = h('button', { type: 'button', class: 'quiet', 'aria-label': 'Attach files', title: 'Attach files', onclick: () => this.picker.click() }, '+');
    this.node = h(
      'form',
      {
        class: 'composer',
        onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.submit(); },
        ondragover: (/** @type {Event} */ event) => event.preventDefault(),
        ondrop: (/** @type {DragEvent} */ event) => { event.preventDefault(); this.add([...(event.dataTransfer?.files ?? [])]); },
      },
      this.list,
      this.note,
      h('div', { class: 'write' }, attach, this.picker, this.area, this.button),
    );
  }

  /** Of another conversation: what was typed there and not sent is there again. @param {string} id */
  open(id) {
    this.draft = DRAFT + id;
    this.area.value = localStorage.getItem(this.draft) ?? '';
    this.files = [];
    this.grow();
    this.showFiles();
  }

  /** The same conversation has an id now. @param {string} id */
  rename(id) {
    this.draft = DRAFT + id;
  }

  /** @param {boolean} isBusy */
  busy(isBusy) {
    this.isBusy = isBusy;
    this.button.textContent = isBusy ? 'Stop' : 'Send';
    this.button.classList.toggle('stops', isBusy);
  }

  typed() {
    this.grow();
    if (this.area.value) localStorage.setItem(this.draft, this.area.value);
    else localStorage.removeItem(this.draft);
  }

  grow() {
    this.area.style.height = 'auto';
    this.area.style.height = `${Math.min(this.area.scrollHeight, innerHeight * 0.4)}px`;
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.isBusy) this.submit();
  }

  submit() {
    if (this.isBusy) {
      this.does.stop();
      return;
    }
    const text = this.area.value.trim();
    if (!text && !this.files.length) return;
    const files = this.files;
    this.area.value = '';
    this.files = [];
    this.typed();
    this.showFiles();
    this.does.send(text, files);
  }

  /** Puts a text back, as after an error. @param {string} text @param {Attachment[]} files */
  put(text, files) {
    this.area.value = text;
    this.files = files;
    this.typed();
    this.showFiles();
    this.area.focus();
  }

  picked() {
    this.add([...(this.picker.files ?? [])]);
    this.picker.value = '';
  }

  /** @param {ClipboardEvent} event */
  pasted(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) {
      event.preventDefault();
      this.add(files);
    }
  }

  /** @param {File[]} files */
  async add(files) {
    const notes = [];
    for (const file of files) {
      const told = await read(file);
      if (typeof told === 'string') notes.push(told);
      else this.files.push(told);
    }
    this.note.textContent = notes.join(' ');
    this.showFiles();
  }

  showFiles() {
    const items = this.files.map((file, i) => {
      const remove = h('button', {
        type: 'button',
        class: 'quiet',
        'aria-label': `Remove ${file.name}`,
        onclick: () => { this.files.splice(i, 1); this.showFiles(); this.area.focus(); },
      }, '×');
      return h('li', {}, `${file.name} (${size((file.text ?? file.data ?? '').length)})`, remove);
    });
    fill(this.list, items);
    if (!this.files.length) this.note.textContent = '';
  }
}

/** A file as an attachment, or why it cannot be one. @param {File} file @returns {Promise<Attachment | string>} */
async function read(file) {
  if (IMAGES.test(file.type)) {
    if (!session.own?.sees) return `${file.name}: this model sees no images.`;
    if (file.size * 1.4 > (session.facts?.max_body_bytes ?? 0)) return `${file.name}: ${size(file.size)} is more than the server takes.`;
    return { name: file.name, media: file.type, data: await dataOf(file) };
  }
  if (file.size > MAX_TEXT) return `${file.name}: a text may have ${size(MAX_TEXT)}, this has ${size(file.size)}.`;
  const text = new TextDecoder('utf-8').decode(await file.arrayBuffer());
  if (text.includes('\0')) return `${file.name} is neither a text nor an image.`;
  return { name: file.name, media: file.type || 'text/plain', text };
}

/** @param {File} file @returns {Promise<string>} */
function dataOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** An image that is shown: of its bytes, never of an address. @param {Attachment} file */
export function pictureOf(file) {
  const [head, body] = (file.data ?? '').split(',');
  const bytes = Uint8Array.from(atob(body ?? ''), (c) => c.charCodeAt(0));
  const kind = /^data:(image\/[a-z+.-]+)/.exec(head)?.[1] ?? '';
  if (!IMAGES.test(kind)) return h('span', {}, file.name);
  return h('img', { src: URL.createObjectURL(new Blob([bytes], { type: kind })), alt: file.name });
}
