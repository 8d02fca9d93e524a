/**
 * A line of source, read from its left edge. Tabs reach to the next multiple of four columns, and may
 * be taken in part.
 * @module
 */

export class Line {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.column = 0;
    /** Whether `at` is a tab of which columns were taken. */
    this.isInTab = false;
  }

  /** Where the next sign that is no space stands, and how many columns away. */
  get next() {
    let at = this.at;
    let column = this.column;
    for (; ; at++) {
      if (this.text[at] === ' ') column++;
      else if (this.text[at] === '\t') column += 4 - (column % 4);
      else break;
    }
    return { at, indent: column - this.column };
  }

  get isBlank() {
    return this.next.at >= this.text.length;
  }

  /** From the next sign that is no space. */
  get content() {
    return this.text.slice(this.next.at);
  }

  /** From here; what is left of a tab is spaces. */
  get rest() {
    if (!this.isInTab) return this.text.slice(this.at);
    return ' '.repeat(4 - (this.column % 4)) + this.text.slice(this.at + 1);
  }

  get isSpace() {
    return this.text[this.at] === ' ' || this.text[this.at] === '\t';
  }

  /** Takes signs, which are no tabs. @param {number} n */
  take(n) {
    this.at += n;
    this.column += n;
    this.isInTab = false;
  }

  /** Takes columns of spaces and tabs. @param {number} n */
  indent(n) {
    while (n > 0 && this.isSpace) {
      const width = this.text[this.at] === '\t' ? 4 - (this.column % 4) : 1;
      const taken = Math.min(width, n);
      this.column += taken;
      n -= taken;
      this.isInTab = taken < width;
      if (!this.isInTab) this.at++;
    }
  }

  skip() {
    this.indent(this.next.indent);
  }

  mark() {
    return { at: this.at, column: this.column, isInTab: this.isInTab };
  }

  /** @param {{ at: number, column: number, isInTab: boolean }} mark */
  reset(mark) {
    Object.assign(this, mark);
  }
}
