import { authSys } from '../../rpc/message.ts';
import type { Caller, Reply, ServedProcedure, ServedProgram } from '../../rpc/server.ts';
import { mountProgram, mountStatus, mountVersion } from '../mount.ts';
import { maxPathBytes } from '../structures.ts';
import type { Export } from './export.ts';
import { FileMoved } from './exported-tree.ts';
import { type ByteString, readBytes, toPath } from './names.ts';
import type { Node } from './nodes.ts';
import { Refusal } from './refusal.ts';

/** The list is for administrators; clients that crash never unmount. */
const maxRememberedMounts = 1024;
const maxNameLength = 255;

export interface MountOptions {
  /** The path of the export for clients. */
  readonly path: string;
  /** The networks that may mount it, as shown to administrators. */
  readonly networks: readonly string[];
  /** A confined caller cannot get a handle by path. */
  readonly isConfined: (caller: Caller) => boolean;
}

const emptyReply: Reply = () => undefined;

/**
 * MOUNT version 3 (RFC 1813, section 5). A path below the export mounts that directory, if the path contains no symbolic links.
 */
export function createMountProgram(exported: Export, options: MountOptions): ServedProgram {
  const path = Buffer.from(options.path).toString('latin1');
  const mounted = new Map<string, { readonly host: string; readonly directory: ByteString }>();

  function remember({ address }: Caller, directory: ByteString): void {
    mounted.set(`${address} ${directory}`, { host: address, directory });
    const [oldest] = mounted.keys();
    if (mounted.size > maxRememberedMounts && oldest !== undefined) mounted.delete(oldest);
  }

  const mnt: ServedProcedure['handle'] = (reader, caller) => {
    const requestedPath = readBytes(reader, maxPathBytes);
    const node = options.isConfined(caller) ? mountStatus.ACCES : walk(exported, path, requestedPath);
    if (typeof node === 'number') return (writer) => void writer.u32(node) as undefined;
    remember(caller, requestedPath);
    const handle = exported.nodes.handleOf(node);
    return (writer) => {
      writer.u32(0).latin1(handle).u32(1).u32(authSys);
      return undefined;
    };
  };

  const dump: ServedProcedure['handle'] = () => (writer) => {
    for (const { host, directory } of mounted.values())
      writer.bool(true).string(host.slice(0, maxNameLength)).string(toPath(directory));
    writer.bool(false);
    return undefined;
  };

  const unmount: ServedProcedure['handle'] = (reader, { address }) => {
    mounted.delete(`${address} ${readBytes(reader, maxPathBytes)}`);
    return emptyReply;
  };

  const unmountAll: ServedProcedure['handle'] = (_reader, { address }) => {
    for (const [key, { host }] of mounted) if (host === address) mounted.delete(key);
    return emptyReply;
  };

  const exports: ServedProcedure['handle'] = () => (writer) => {
    writer.bool(true).string(options.path);
    for (const network of options.networks) writer.bool(true).string(network);
    writer.bool(false).bool(false);
    return undefined;
  };

  const procedures: readonly [string, ServedProcedure['handle']][] = [
    ['MOUNT NULL', () => emptyReply],
    ['MNT', mnt],
    ['DUMP', dump],
    ['UMNT', unmount],
    ['UMNTALL', unmountAll],
    ['EXPORT', exports],
  ];
  return {
    number: mountProgram,
    version: mountVersion,
    procedures: new Map(procedures.map(([name, handle], number) => [number, { name, handle }])),
  };
}

/** Walks down name by name, without following links. */
function walk(exported: Export, path: ByteString, requestedPath: ByteString): Node | number {
  const { tree } = exported;
  const [from, names] = [partsOf(path), partsOf(requestedPath)];
  if (from.some((name, i) => names[i] !== name)) return mountStatus.NOENT;
  tree.descriptors.startTurn();
  try {
    let node = tree.root;
    for (const name of names.slice(from.length)) {
      if (name === '..' || name.length > maxNameLength || name.includes('\0')) return mountStatus.INVAL;
      const stats = tree.lookup(node, name);
      if (stats === undefined) return mountStatus.NOENT;
      if (!stats.isDirectory()) return mountStatus.NOTDIR;
      node = tree.nodeFor(node, name, stats);
    }
    return node;
  } catch (cause) {
    if (cause instanceof FileMoved) return mountStatus.NOENT;
    if (cause instanceof Refusal) return cause.status;
    exported.onError('MNT failed', cause);
    return mountStatus.IO;
  }
}

const partsOf = (path: ByteString): readonly ByteString[] =>
  path.split('/').filter((name) => name !== '' && name !== '.');
