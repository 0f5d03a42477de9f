import { formatDuration, parseDuration } from '#base/duration.ts';
import { parseSize } from '#base/size.ts';
import { type ReasonWith, StowageError } from './errors.ts';
import type { OnDelete, StoreConfig, StorePolicy } from './model.ts';
import { quoted, storeName } from './names.ts';
import type { StoreKind } from './ports.ts';

/** The options of stores of any kind. The same keys in a URI's query and in stowage.yaml. */
export const policyOptions: Readonly<Record<keyof StorePolicy, string>> = {
  onDelete: 'delete (default), retain (leave the data in place) or archive (a trash)',
  retention: 'how long archive keeps a deleted volume, e.g. 12h, 7d (default)',
  readOnly: 'true: existing directories appear as volumes, nothing can be changed',
  maxVolumes: 'the maximum number of volumes',
  maxBytes: 'the maximum total size of the volumes, e.g. 500G',
  defaultSize: 'the size of a volume created without one',
  inline:
    'whether pods may have inline volumes, created and deleted with the pod: true or false; default: only on stores of a single machine',
};

const defaultRetentionMs = 7 * 86_400_000;
/** Longer durations would exceed the range of dates. */
const maxRetentionMs = 1000 * 365 * 86_400_000;

function uriError(message: string, action: string, reason: ReasonWith<'invalid'> = 'store-uri-invalid'): StowageError {
  return new StowageError(message, { code: 'invalid', reason, action });
}

export function parseStoreConfig(
  name: string,
  uri: string,
  origin: StoreConfig['origin'],
  kinds: ReadonlyMap<string, StoreKind>,
): StoreConfig {
  const checkedName = storeName(name);
  const scheme = /^([a-z][a-z0-9+-]*):\/\//.exec(uri)?.[1];
  const knownSchemes = [...kinds.keys()].map((kind) => `${kind}://`).join(', ');
  if (scheme === undefined)
    throw uriError(`${quoted(uri)} is not a store URI`, `Write it as in local:///srv/data. Known: ${knownSchemes}`);
  const kind = kinds.get(scheme);
  if (kind === undefined)
    throw uriError(`no store is known for ${scheme}://`, `Use one of ${knownSchemes}`, 'store-kind-unknown');
  const [, authority = ''] = /^[^:]*:\/\/([^/?#]*)/.exec(uri) ?? [];
  // URL does not accept several hosts in an authority. The store kind validates them.
  const parsableUri = uri.replace(authority, authority === '' ? '' : 'host');
  if (!URL.canParse(parsableUri))
    throw uriError(`${quoted(uri)} is not a valid URI`, 'Escape special characters in it as %XX.');
  const url = new URL(parsableUri);
  if (authority.includes('@')) {
    throw uriError(
      'a store URI must not contain a user or password',
      'Remove the part before the @.',
      'store-uri-secret',
    );
  }
  const options: Record<string, string> = {};
  const policy: Partial<Record<keyof StorePolicy, string>> = {};
  for (const [key, value] of url.searchParams) {
    if (Object.hasOwn(policyOptions, key)) policy[key as keyof StorePolicy] = value;
    else if (Object.hasOwn(kind.options, key)) options[key] = value;
    else {
      const allowed = [...Object.keys(policyOptions), ...Object.keys(kind.options)].sort().join(', ');
      throw uriError(
        `store '${name}' has the unknown option ${quoted(key)}`,
        `Allowed are: ${allowed}`,
        'store-option-unknown',
      );
    }
  }
  const config: StoreConfig = { name: checkedName, uri, origin, policy: parsePolicy(name, policy), options };
  kind.validate?.(config);
  return config;
}

function parsePolicy(name: string, given: Partial<Record<keyof StorePolicy, string>>): StorePolicy {
  const invalidValue = (key: keyof StorePolicy): StowageError =>
    uriError(
      `store '${name}': ${quoted(given[key] ?? '')} is not a value for ${key}`,
      `${key}: ${policyOptions[key]}`,
      'store-option-invalid',
    );
  const sizeOption = (key: 'maxBytes' | 'defaultSize'): bigint | undefined => {
    const text = given[key];
    if (text === undefined) return undefined;
    const bytes = parseSize(text);
    if (bytes === undefined || bytes === 0n) throw invalidValue(key);
    return bytes;
  };
  const booleanOption = (key: 'readOnly' | 'inline'): boolean | undefined => {
    const text = given[key];
    if (text !== undefined && text !== 'true' && text !== 'false') throw invalidValue(key);
    return text === undefined ? undefined : text === 'true';
  };
  const onDelete = given.onDelete ?? 'delete';
  if (!isOnDelete(onDelete)) throw invalidValue('onDelete');
  const retention = parseDuration(given.retention ?? formatDuration(defaultRetentionMs));
  if (retention === undefined || retention > maxRetentionMs) throw invalidValue('retention');
  if (given.maxVolumes !== undefined && !/^[0-9]{1,9}$/.test(given.maxVolumes)) throw invalidValue('maxVolumes');
  return {
    onDelete,
    retention,
    readOnly: booleanOption('readOnly') ?? false,
    maxVolumes: given.maxVolumes === undefined ? undefined : Number(given.maxVolumes),
    maxBytes: sizeOption('maxBytes'),
    defaultSize: sizeOption('defaultSize'),
    inline: booleanOption('inline'),
  };
}

const isOnDelete = (text: string): text is OnDelete => ['delete', 'retain', 'archive'].includes(text);
