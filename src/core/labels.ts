import { StowageError } from './errors.ts';
import type { Labels } from './model.ts';
import { quoted } from './names.ts';

const keyGrammar = /^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$/;
const reserved = 'stowage.dev/';
const most = 64;

function refuse(message: string, action: string): StowageError {
  return new StowageError(message, { code: 'invalid', reason: 'label-invalid', action });
}

/** The door for labels, as names.ts is for names. */
export function checkLabels(labels: Labels): Labels {
  const entries = Object.entries(labels);
  if (entries.length > most) throw refuse(`${entries.length} labels are too many`, `Give at most ${most}.`);
  for (const [key, value] of entries) {
    if (!keyGrammar.test(key))
      throw refuse(`${quoted(key)} cannot be a label`, 'Use 1 to 128 of A-Z a-z 0-9 _ . / - for its name.');
    if (key.startsWith(reserved))
      throw refuse(`the label ${quoted(key)} is reserved`, `Choose a name that does not begin with ${reserved}`);
    if (value.length > 256)
      throw refuse(`the value of label ${quoted(key)} is too long`, 'Use at most 256 characters.');
    if (/[\x00-\x1f\x7f]/.test(value))
      throw refuse(`the value of label ${quoted(key)} has control characters`, 'Remove them.');
  }
  // Sorted, so that two equal sets of labels are equal as text.
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Null removes a label. */
export function mergeLabels(labels: Labels, change: Readonly<Record<string, string | null>>): Labels {
  const merged = new Map(Object.entries(labels));
  for (const [key, value] of Object.entries(change)) {
    if (value === null) merged.delete(key);
    else merged.set(key, value);
  }
  return checkLabels(Object.fromEntries(merged));
}
