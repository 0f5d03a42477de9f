import { StowageError } from '#core/errors.ts';
import { isLabelKey } from '#core/labels.ts';
import type { Labels } from '#core/model.ts';
import { isVolumeName, quoted } from '#core/names.ts';
import type { DataPaths } from '../file-store/layout.ts';

const templateHelp =
  'Build the path from {name}, {id} and {label:KEY}, with / between folders, for example {label:team}/{name}. The last part must contain {id}, or {name} and no labels.';

function invalid(template: string, why: string): StowageError {
  return new StowageError(`${quoted(template)} is not a path template: ${why}`, {
    code: 'invalid',
    reason: 'store-option-invalid',
    action: templateHelp,
  });
}

const token = /\{([^{}]*)\}/g;
/** A slash, except in the key of a label. */
const separator = /\/(?![^{}]*\})/;
const labelPrefix = 'label:';
const isPlaceholder = (text: string): boolean =>
  text === 'name' || text === 'id' || (text.startsWith(labelPrefix) && isLabelKey(text.slice(labelPrefix.length)));
const maxParts = 8;
/** The longest path that a record can have. */
const maxPathChars = 1024;

export function parsePathTemplate(template: string): DataPaths {
  const parts = template.split(separator);
  if (parts.length > maxParts) throw invalid(template, `it has more than ${maxParts} parts`);
  for (const part of parts) {
    for (const [, found = ''] of part.matchAll(token))
      if (!isPlaceholder(found)) throw invalid(template, `{${found}} is unknown`);
    const example = part.replaceAll(token, 'x');
    if (/[{}]/.test(example)) throw invalid(template, 'a brace has no partner');
    if (!isFolderName(example)) throw invalid(template, `${quoted(part)} cannot be the name of a folder`);
  }
  refuseAmbiguous(template, parts.at(-1) ?? '');
  return {
    pathFor: (want) => {
      const path = parts.map((part) => fillPart(part, want)).join('/');
      if (path.length > maxPathChars) throw labelUnfit(want.name, path);
      return path;
    },
    depth: parts.length,
    volumeAt: createMatch(template),
  };
}

/** Two volumes must never get the same directory, whatever their labels: {a}-{b} is the same for "a-b" and "c" as for "a" and "b-c". */
function refuseAmbiguous(template: string, last: string): void {
  const placeholders = Array.from(last.matchAll(token), ([, found = '']) => found);
  if (
    placeholders.includes('id') ||
    (placeholders.includes('name') && !placeholders.some((placeholder) => placeholder.startsWith(labelPrefix)))
  )
    return;
  throw invalid(template, 'two volumes could get the same path');
}

/** Parses a path back into name and labels, for existing data. A path with an id matches nothing, because ids cannot be chosen. */
function createMatch(template: string): DataPaths['volumeAt'] {
  const placeholders: string[] = [];
  const literal = (text: string): string => text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
  const pattern = template.split(token).map((text, i) => {
    if (i % 2 === 0) return literal(text);
    placeholders.push(text);
    return '([^/]+)';
  });
  const pathPattern = new RegExp(`^${pattern.join('')}$`);
  return (path) => {
    const found = placeholders.includes('id') ? null : pathPattern.exec(path);
    if (found === null) return undefined;
    const values = new Map<string, string>();
    for (const [i, placeholder] of placeholders.entries()) {
      const value = found[i + 1] ?? '';
      // A placeholder that occurs twice must have the same text.
      if ((values.get(placeholder) ?? value) !== value) return undefined;
      values.set(placeholder, value);
    }
    const name = values.get('name') ?? '';
    values.delete('name');
    const labels: Labels = Object.fromEntries(
      Array.from(values, ([one, text]) => [one.slice(labelPrefix.length), text]),
    );
    return isVolumeName(name) ? { name, labels } : undefined;
  };
}

function fillPart(part: string, { id, name, labels }: Parameters<DataPaths['pathFor']>[0]): string {
  const text = part.replaceAll(token, (_all, found: string) => {
    if (found === 'name') return name;
    if (found === 'id') return id;
    const key = found.slice(labelPrefix.length);
    const value = Object.hasOwn(labels, key) ? labels[key] : undefined;
    if (value === undefined || value === '') throw missingLabel(name, key);
    return value;
  });
  if (isFolderName(text)) return text;
  throw labelUnfit(name, text);
}

function labelUnfit(name: string, text: string): StowageError {
  return new StowageError(
    `the labels of volume ${quoted(name)} make ${quoted(text)}, which cannot be the name of a folder, or is too long`,
    {
      code: 'invalid',
      reason: 'label-unfit-for-path',
      action:
        "This store's directories are named after labels: use labels without slashes or a leading dot, that do not end in .meta.",
    },
  );
}

/** A name that ends in `.meta` would look like a record. */
const isFolderName = (text: string): boolean =>
  !/[/\0-\x1f]|^\.|\.meta$/.test(text) && Buffer.byteLength(text) <= 255 && text !== '';

function missingLabel(name: string, key: string): StowageError {
  return new StowageError(`volume ${quoted(name)} needs the label ${quoted(key)} in this store`, {
    code: 'invalid',
    reason: 'label-missing',
    action: `Create it with that label, for example --label ${key}=VALUE: this store's directories are named after it.`,
  });
}
