import { StowageError } from '#core/errors.ts';
import type { VolumeSpec } from '#core/model.ts';
import { quoted } from '#core/names.ts';

/** Gives where the data of a volume go, below the root of the store. */
export type PathTemplate = (want: Pick<VolumeSpec, 'id' | 'name' | 'labels'>) => string;

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

export function parsePathTemplate(template: string): PathTemplate {
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
  return (want) => parts.map((part) => fill(part, want)).join('/');
}

function fill(part: string, { id, name, labels }: Parameters<PathTemplate>[0]): string {
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
