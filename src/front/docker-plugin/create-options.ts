import { parseSize } from '#base/size.ts';
import { StowageError } from '#core/errors.ts';
import type { Labels } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import { policyOptions } from '#core/store-uri.ts';

/** What was asked for by `-o`; what is undefined was not. */
export interface CreateOptions {
  readonly store: string | undefined;
  readonly bytes: bigint | undefined;
  readonly enforce: boolean | undefined;
  readonly labels: Labels | undefined;
}

const allowed = '-o store=NAME, -o size=SIZE, -o enforce=true, -o label.KEY=VALUE';

/** How other drivers are told where data lie and how to mount them; here the administrator says that, on the store. */
const mountOptions =
  `addr address backend credentials device driver export fs fstype host hostname ip mount mountOptions
  mount_options mountopts mountpoint nfsopts nfsvers o opts options password path port protocol proto rw secret sec
  server share sharename type user username uuid vers version`.split(/\s+/);

/** The kinds' own options, which this layer knows nothing else about. */
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

/** `-o enforce` alone is sent as an empty text. */
function parseBooleanOption(text: string): boolean {
  if (['', 'true', '1'].includes(text)) return true;
  if (['false', '0'].includes(text)) return false;
  throw new StowageError(`${quoted(text)} is not a value for enforce`, {
    code: 'invalid',
    reason: 'plugin-option-invalid',
    action: 'Write -o enforce=true, or leave it out.',
  });
}

function unknownOption(key: string, isStoreOption: IsStoreOption): StowageError {
  const short = key.toLowerCase();
  const isMounting = mountOptions.some((one) => one.toLowerCase() === short);
  if (isMounting || Object.hasOwn(policyOptions, key) || isStoreOption(key))
    return new StowageError(`${quoted(key)} is said by the administrator, once, on the store`, {
      code: 'denied',
      reason: 'plugin-option-of-administrator',
      action: `Name a store instead of how to reach it: -o store=NAME. Allowed are: ${allowed}`,
    });
  return new StowageError(`${quoted(key)} is not an option`, {
    code: 'invalid',
    reason: 'plugin-option-unknown',
    action: `Allowed are: ${allowed}`,
  });
}
