import { isJsonObject, jsonIn } from '#base/json.ts';
import type { NodeName, Use, User } from '#core/model.ts';

/** The files in `.stowage/users/<volume id>`: one for each host, and `.writer`. */

const formatVersion = 1;
export const maxRecordBytes = 64 * 1024;
const maxUsers = 1000;
/** Holds the id of the one host that may write. No host can have this id. */
export const writerFile = '.writer';
/** The host of a `.writer` file that cannot be read, so that users can see the record and remove it. */
export const unknownHost = 'unknown';

export const isHostId = (text: string): boolean => /^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$/.test(text);
const kinds: readonly string[] = ['path', 'container', 'pod', 'kubelet'] satisfies User['kind'][];

/** Omits users that do not fit. The essential fact is that the host uses the volume. */
export function encodeUse({ host, node, users }: Use): string {
  for (let count = maxUsers; ; count = Math.floor(count / 2)) {
    const shown = users.slice(0, count).map(({ kind, name }) => ({ kind, name }));
    const text = `${JSON.stringify({ version: formatVersion, host, node, users: shown })}\n`;
    if (Buffer.byteLength(text) <= maxRecordBytes || shown.length === 0) return text;
  }
}

/** A host with an unreadable record uses the volume, too: never allow deletion because of it. */
export function decodeUse(host: string, text: string): Use {
  const json = jsonIn(text);
  if (!isJsonObject(json) || typeof json['node'] !== 'string' || !Array.isArray(json['users']))
    return { host, node: host as NodeName, users: [] };
  const users = json['users'].slice(0, maxUsers).filter(isUser);
  return { host, node: json['node'] as NodeName, users };
}

const isUser = (value: unknown): value is Pick<User, 'kind' | 'name'> =>
  isJsonObject(value) && kinds.includes(String(value['kind'])) && typeof value['name'] === 'string';
