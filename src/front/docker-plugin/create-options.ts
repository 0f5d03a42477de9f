import { parseSize } from '#base/size.ts';
import { StowageError } from '#core/errors.ts';
import type { Labels } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import { policyOptions } from '#core/store-uri.ts';

/** The `-o` options; undefined: not given. */
export interface CreateOptions {
  readonly store: string | undefined;
  readonly bytes: bigint | undefined;
  readonly enforce: boolean | undefined;
  readonly labels: Labels | undefined;
}

const allowed = '-o store=NAME, -o size=SIZE, -o enforce=true, -o label.KEY=VALUE';

/** Options that tell other drivers where the data are and how to mount them. Here the administrator configures that on the store. */
const mountOptions =
  `addr address backend credentials device driver export fs fstype host hostname ip mount mountOptions
  mount_options mountopts mountpoint nfsopts nfsvers o opts options password path port protocol proto rw secret sec
  server share sharename type user username uuid vers version`.split(/\s+/);

/** Whether a store kind has an option of that name. */
export type IsStoreOption = (option: string) => boolean;

export function parseCreateOptions(options: ReadonlyMap<string, string>, isStoreOption: IsStoreOption): CreateOptions {
  const labels = new Map<string, string>();
  let [store, bytes, enforce]: [string?, bigint?, boolean?] = [];
  for (const [key, value] of options) {
    if (key === 'store') store = value === '' ? undefined : value;
    else if (key === 'size') bytes = parseSizeOption(value);
    else if (key === 'enforce') enforce = parseBooleanOption(value);
    else if (key.startsWith('label.')) labels.set(key.slice('label.'.length), value);
    else throw unknownOption(key, isStoreOption);
  }
  return { store, bytes, enforce, labels: labels.size === 0 ? undefined : Object.fromEntries(labels) };
}

function parseSizeOption(text: string): bigint {
  const bytes = parseSize(text);
  if (bytes !== undefined) return bytes;
  throw new StowageError(`${quoted(text)} is not a size`, {
    code: 'invalid',
    reason: 'size-invalid',
    action: 'Write a size such as -o size=500M, 1G or 1.5T (powers of 1024); 1GB means 10^9 bytes.',
  });
}

/** Engines send `-o enforce` without a value as an empty string. */
function parseBooleanOption(text: string): boolean {
  if (['', 'true', '1'].includes(text)) return true;
  if (['false', '0'].includes(text)) return false;
  throw new StowageError(`${quoted(text)} is not a valid value for enforce`, {
    code: 'invalid',
    reason: 'plugin-option-invalid',
    action: 'Use -o enforce=true, or omit the option.',
  });
}

function unknownOption(key: string, isStoreOption: IsStoreOption): StowageError {
  const short = key.toLowerCase();
  const isMounting = mountOptions.some((one) => one.toLowerCase() === short);
  if (isMounting || Object.hasOwn(policyOptions, key) || isStoreOption(key))
    return new StowageError(`${quoted(key)} can be set only on the store, by the administrator`, {
      code: 'denied',
      reason: 'plugin-option-of-administrator',
      action: `Select a store instead: -o store=NAME. Supported options: ${allowed}`,
    });
  return new StowageError(`unknown option ${quoted(key)}`, {
    code: 'invalid',
    reason: 'plugin-option-unknown',
    action: `Supported options: ${allowed}`,
  });
}
