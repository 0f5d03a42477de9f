import { posix } from 'node:path';
import type { PersistentVolume } from '#wire/kube/types.ts';

/** Of a file server, as PersistentVolumes name it. */
export interface Directory {
  readonly server: string;
  readonly path: string;
  readonly isReadOnly: boolean;
}

/** The driver's name for its volumes; those of nfs-subdir-external-provisioner are Kubernetes' own kind. */
const csiDriverNfs = 'nfs.csi.k8s.io';

type Csi = NonNullable<PersistentVolume['spec']['csi']>;

/** What the driver puts into the names of directories, and under which key it finds that. */
const inNames: Readonly<Record<string, string>> = {
  '${pvc.metadata.name}': 'csi.storage.k8s.io/pvc/name',
  '${pvc.metadata.namespace}': 'csi.storage.k8s.io/pvc/namespace',
  '${pv.metadata.name}': 'csi.storage.k8s.io/pv/name',
};

/** That driver does not look at how they are written. */
const attributesOf = ({ volumeAttributes = {} }: Csi): ReadonlyMap<string, string> =>
  new Map(Object.entries(volumeAttributes).map(([key, one]) => [key.toLowerCase(), one]));

/** Undefined: it is no directory of a file server. */
export function directoryOf({ spec }: PersistentVolume): Directory | undefined {
  const { csi, nfs } = spec;
  if (nfs !== undefined)
    return { server: serverName(nfs.server), path: plain(nfs.path), isReadOnly: nfs.readOnly === true };
  if (csi?.driver !== csiDriverNfs) return undefined;
  const attributes = attributesOf(csi);
  const [server, share] = [attributes.get('server'), attributes.get('share')];
  if (!server || !share) return undefined;
  let below = attributes.get('subdir') ?? '';
  for (const [word, key] of Object.entries(inNames)) below = below.replaceAll(word, attributes.get(key) ?? word);
  return { server: serverName(server), path: plain(`${share}/${below}`), isReadOnly: csi.readOnly === true };
}

const plain = (path: string): string => posix.resolve('/', path);
/** As far as names that are written differently are known to be the same. */
export const serverName = (server: string): string =>
  server
    .toLowerCase()
    .replace(/^\[(.*)\]$/, '$1')
    .replace(/\.$/, '');

/** Where volumes of a store lie. */
export interface Export {
  readonly server: string;
  readonly path: string;
}

/** Undefined: such a store has no export. */
export function exportOf(uri: string): Export | undefined {
  if (!URL.canParse(uri)) return undefined;
  const { protocol, hostname, pathname } = new URL(uri);
  return protocol === 'nfs:' ? { server: serverName(hostname), path: plain(decodeURIComponent(pathname)) } : undefined;
}

/** From the export on; empty: the export itself. Undefined: it is not on it. */
export function below({ path }: Export, directory: Directory): string | undefined {
  if (directory.path === path) return '';
  const within = path === '/' ? '/' : `${path}/`;
  return directory.path.startsWith(within) ? directory.path.slice(within.length) : undefined;
}
