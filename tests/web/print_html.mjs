// Reads a JSON list of texts, writes a JSON list of their HTML.
import { readFileSync } from 'node:fs';
import { page } from './dom.mjs';
import { html } from './html.mjs';

const { parse } = await page('markdown/stream.js');
const texts = JSON.parse(readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(texts.map((text) => html(parse(text)))));
