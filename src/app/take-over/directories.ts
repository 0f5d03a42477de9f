import { posix } from 'node:path';
import type { PersistentVolume } from '#wire/kube/types.ts';

/** A directory of a file server that a PersistentVolume refers to. */
export interface Directory {
  readonly server: string;
  readonly path: string;
  readonly isReadOnly: boolean;
}

/** The driver name of csi-driver-nfs; nfs-subdir-external-provisioner uses Kubernetes' own `nfs` volumes. */
const csiDriverNfs = 'nfs.csi.k8s.io';

type Csi = NonNullable<PersistentVolume['spec']['csi']>;

/** The variables in csi-driver-nfs's subdirectory names, and the attributes with their values. */
const nameVariables: Readonly<Record<string, string>> = {
  '${pvc.metadata.name}': 'csi.storage.k8s.io/pvc/name',
  '${pvc.metadata.namespace}': 'csi.storage.k8s.io/pvc/namespace',
  '${pv.metadata.name}': 'csi.storage.k8s.io/pv/name',
};

/** csi-driver-nfs ignores the case of attributes. */
const attributesOf = ({ volumeAttributes = {} }: Csi): ReadonlyMap<string, string> =>
  new Map(Object.entries(volumeAttributes).map(([key, one]) => [key.toLowerCase(), one]));

/** Undefined: the volume is not a directory of a file server. */
export function directoryOf({ spec }: PersistentVolume): Directory | undefined {
  const { csi, nfs } = spec;
  if (nfs !== undefined)
    return { server: serverName(nfs.server), path: normalizePath(nfs.path), isReadOnly: nfs.readOnly === true };
  if (csi?.driver !== csiDriverNfs) return undefined;
  const attributes = attributesOf(csi);
  const [server, share] = [attributes.get('server'), attributes.get('share')];
  if (!server || !share) return undefined;
  let subdir = attributes.get('subdir') ?? '';
  for (const [word, key] of Object.entries(nameVariables))
    subdir = subdir.replaceAll(word, attributes.get(key) ?? word);
  return { server: serverName(server), path: normalizePath(`${share}/${subdir}`), isReadOnly: csi.readOnly === true };
}

const normalizePath = (path: string): string => posix.resolve('/', path);
/** Normalizes spellings of a name that are known to be equivalent. */
export const serverName = (server: string): string =>
  server
    .toLowerCase()
    .replace(/^\[(.*)\]$/, '$1')
    .replace(/\.$/, '');

/** The exported directory in which a store's volumes are. */
export interface Export {
  readonly server: string;
  readonly path: string;
}

/** Undefined: the store has no export. */
export function exportOf(uri: string): Export | undefined {
  if (!URL.canParse(uri)) return undefined;
  const { protocol, hostname, pathname } = new URL(uri);
  return protocol === 'nfs:'
    ? { server: serverName(hostname), path: normalizePath(decodeURIComponent(pathname)) }
    : undefined;
}

/** The path relative to the export; empty: the export itself. Undefined: the directory is not on the export. */
export function pathBelow({ path }: Export, directory: Directory): string | undefined {
  if (directory.path === path) return '';
  const prefix = path === '/' ? '/' : `${path}/`;
  return directory.path.startsWith(prefix) ? directory.path.slice(prefix.length) : undefined;
}
