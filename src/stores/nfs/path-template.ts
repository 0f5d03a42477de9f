import { StowageError } from '#core/errors.ts';
import type { Labels } from '#core/model.ts';
import { isVolumeName, quoted } from '#core/names.ts';
import type { DataPaths } from '../shelf/layout.ts';

const help =
  'Write it of {name}, {id} and {label:KEY}, with / between folders, for example {label:team}/{name}. The last part must contain {name} or {id}.';

function invalid(template: string, why: string): StowageError {
  return new StowageError(`${quoted(template)} is not a path template: ${why}`, {
    code: 'invalid',
    reason: 'store-option-invalid',
    action: help,
  });
}

const token = /\{([^{}]*)\}/g;
const mostFolders = 8;

export function parsePathTemplate(template: string): DataPaths {
  const parts = template.split('/');
  if (parts.length > mostFolders) throw invalid(template, `it has more than ${mostFolders} parts`);
  for (const part of parts) {
    for (const [, word = ''] of part.matchAll(token))
      if (word !== 'name' && word !== 'id' && !/^label:.+$/s.test(word))
        throw invalid(template, `{${word}} is unknown`);
    const fixed = part.replaceAll(token, '');
    if (/[{}\0-\x1f]/.test(fixed)) throw invalid(template, 'a brace or control character stands alone');
    if (part === '' || part === '.' || part === '..')
      throw invalid(template, 'a part of it is empty or leads elsewhere');
  }
  // Otherwise two volumes could have one directory.
  if (!/\{(?:name|id)\}/.test(parts.at(-1) ?? '')) throw invalid(template, 'volumes could not be told apart');
  return {
    pathFor: (want) => parts.map((part) => fill(part, want)).join('/'),
    depth: parts.length,
    volumeAt: createMatch(template),
  };
}

/** The other way round, for data that are there already. An id cannot be chosen, so with one in it nothing fits. */
function createMatch(template: string): DataPaths['volumeAt'] {
  const words: string[] = [];
  const literal = (text: string): string => text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
  const pattern = template.split(token).map((text, i) => {
    if (i % 2 === 0) return literal(text);
    words.push(text);
    return '([^/]+)';
  });
  const whole = new RegExp(`^${pattern.join('')}$`);
  return (path) => {
    const found = words.includes('id') ? null : whole.exec(path);
    if (found === null) return undefined;
    const values = new Map<string, string>();
    for (const [i, word] of words.entries()) {
      const value = found[i + 1] ?? '';
      // The same word twice means the same text twice.
      if ((values.get(word) ?? value) !== value) return undefined;
      values.set(word, value);
    }
    const name = values.get('name') ?? '';
    values.delete('name');
    const labels: Labels = Object.fromEntries(
      Array.from(values, ([word, text]) => [word.slice('label:'.length), text]),
    );
    return isVolumeName(name) ? { name, labels } : undefined;
  };
}

function fill(part: string, { id, name, labels }: Parameters<DataPaths['pathFor']>[0]): string {
  const text = part.replaceAll(token, (_all, word: string) => {
    if (word === 'name') return name;
    if (word === 'id') return id;
    const key = word.slice('label:'.length);
    const value = Object.hasOwn(labels, key) ? labels[key] : undefined;
    if (value === undefined || value === '') throw missingLabel(name, key);
    return value;
  });
  if (isFolderName(text)) return text;
  throw new StowageError(`the labels of volume ${quoted(name)} make ${quoted(text)}, which cannot be a folder's name`, {
    code: 'invalid',
    reason: 'label-unfit-for-path',
    action: "This store's directories are named after labels: use labels without slashes, dots in front and the like.",
  });
}

/** `.meta` would be taken for a record. */
const isFolderName = (text: string): boolean =>
  !/[/\0-\x1f]|^\.|\.meta$/.test(text) && Buffer.byteLength(text) <= 255 && text !== '';

function missingLabel(name: string, key: string): StowageError {
  return new StowageError(`volume ${quoted(name)} needs the label ${quoted(key)} in this store`, {
    code: 'invalid',
    reason: 'label-missing',
    action: `Create it with that label, for example --label ${key}=VALUE: this store's directories are named after it.`,
  });
}
