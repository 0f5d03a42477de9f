import { StowageError } from './errors.ts';
import type { Labels } from './model.ts';
import { quoted } from './names.ts';

/** Patterns and limits of labels, also used by schemas. */
export const labelKeyPattern = '^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$';
export const labelValuePattern = '^[^\\u0000-\\u001f\\u007f]*$';
/** The keys of labels that only Stowage sets. */
export const ownLabelPattern = '^stowage\\.dev/[a-z-]{1,64}$';
/** `most`: labels per volume; `length`: characters per value. */
export const labelLimits = { most: 64, length: 256 } as const;

const keyGrammar = new RegExp(labelKeyPattern);
const valueGrammar = new RegExp(labelValuePattern);
const reservedPrefix = 'stowage.dev/';

export const isLabelKey = (key: string): boolean => keyGrammar.test(key);
export const isReservedLabel = (key: string): boolean => key.startsWith(reservedPrefix);

function labelError(message: string, action: string): StowageError {
  return new StowageError(message, { code: 'invalid', reason: 'label-invalid', action });
}

/** Validates labels from callers, as names.ts does for names. */
export function checkLabels(labels: Labels): Labels {
  const entries = Object.entries(labels);
  if (entries.length > labelLimits.most)
    throw labelError(`${entries.length} labels are too many`, `Give at most ${labelLimits.most}.`);
  for (const [key, value] of entries) {
    if (!isLabelKey(key))
      throw labelError(`${quoted(key)} cannot be a label`, 'Use 1 to 128 of A-Z a-z 0-9 _ . / - for its name.');
    if (isReservedLabel(key))
      throw labelError(
        `the label ${quoted(key)} is reserved`,
        `Choose a name that does not begin with ${reservedPrefix}`,
      );
    if (value.length > labelLimits.length)
      throw labelError(
        `the value of label ${quoted(key)} is too long`,
        `Use at most ${labelLimits.length} characters.`,
      );
    if (!valueGrammar.test(value))
      throw labelError(`the value of label ${quoted(key)} has control characters`, 'Remove them.');
  }
  // Sorted, so that two equal sets of labels are equal as text.
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Null removes a label. Keeps Stowage's own labels and adds `ownLabels`. */
export function mergeLabels(
  labels: Labels,
  change: Readonly<Record<string, string | null>>,
  ownLabels: Labels = {},
): Labels {
  const own = Object.entries(labels).filter(([key]) => isReservedLabel(key));
  const merged = new Map(Object.entries(labels).filter(([key]) => !isReservedLabel(key)));
  for (const [key, value] of Object.entries(change)) {
    if (value === null) merged.delete(key);
    else merged.set(key, value);
  }
  return withOwnLabels(checkLabels(Object.fromEntries(merged)), { ...Object.fromEntries(own), ...ownLabels });
}

/** The reserved key for a label of Stowage: `name` becomes `stowage.dev/name`. */
export const ownLabel = (name: string): string => `${reservedPrefix}${name}`;

/** Adds labels with reserved keys (`ownLabel`). Their values are names from other systems, so invalid characters are replaced. */
export function withOwnLabels(labels: Labels, own: Labels): Labels {
  const entries = Object.entries(own).map(([key, value]): [string, string] => {
    if (!isReservedLabel(key)) throw new Error(`${key} is not a label of Stowage's own`);
    return [key, value.slice(0, labelLimits.length).replace(/[\x00-\x1f\x7f]/g, ' ')];
  });
  if (entries.length === 0) return labels;
  return Object.fromEntries([...Object.entries(labels), ...entries].sort(([a], [b]) => (a < b ? -1 : 1)));
}
