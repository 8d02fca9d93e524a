/**
 * Where two answers part.
 * @module
 */

/** The first place at which two lists differ; -1 where they do not. @param {{ id: number }[]} a @param {{ id: number }[]} b */
export function firstDifference(a, b) {
  const n = Math.max(a.length, b.length);
  for (let i = 0; i < n; i++) if (a[i]?.id !== b[i]?.id) return i;
  return -1;
}
