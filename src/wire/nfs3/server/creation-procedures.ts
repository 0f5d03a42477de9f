import {
  type BigIntStats,
  chmodSync,
  chownSync,
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fstatSync,
  ftruncateSync,
  futimesSync,
  mkdirSync,
  openSync,
  symlinkSync,
  unlinkSync,
} from 'node:fs';
import { XdrError, type XdrReader } from '../../xdr/reader.ts';
import type { XdrWriter } from '../../xdr/writer.ts';
import { fileType, maxPathBytes, readSetAttributes, type SetAttributes, writePostAttributes } from '../structures.ts';
import {
  allowedMode,
  directoryModeIn,
  groupForNew,
  permission,
  requireDirectoryWrite,
  requirePermission,
} from './access.ts';
import { writeWccData } from './attributes.ts';
import { type Export, readNode, requireWritable } from './export.ts';
import { isSameFile } from './exported-tree.ts';
import type { Credentials } from './identities.ts';
import { type ByteString, readBytes, readName, requireValidNewName, toPath } from './names.ts';
import type { Node } from './nodes.ts';
import { type ProcedureDefinition, type ProcedureHandler, replyWhenDurable, successReply } from './procedure.ts';
import { refuse } from './refusal.ts';
import { localAttributes, setAttributes, setTimes } from './set-attributes.ts';

const bigint = { bigint: true } as const;

/** The directory, name and caller of a creation. */
interface CreationTarget {
  readonly exported: Export;
  readonly directory: Node;
  readonly name: ByteString;
  readonly directoryStats: BigIntStats;
  readonly who: Credentials;
}

function readCreationTarget(exported: Export, reader: XdrReader, who: Credentials): CreationTarget {
  const directory = readNode(exported, reader);
  const name = readName(reader);
  return { exported, directory, name, directoryStats: exported.tree.statDirectory(directory), who };
}

/**
 * The reply of all procedures that create an object: its handle, its attributes, and the directory's wcc_data. `changed`: the
 * nodes to sync before the reply, which are the directory, and the new file if attributes were set after it was created.
 */
function createdReply(
  { exported, directory, directoryStats: around }: CreationTarget,
  node: Node,
  stats: BigIntStats,
  ...changed: Node[]
): ReturnType<ProcedureHandler> {
  const { toAttributes, nodes, tree } = exported;
  const handle = nodes.handleOf(node);
  const attributes = toAttributes(stats);
  const change = { before: toAttributes(around), after: toAttributes(tree.statDirectory(directory)) };
  const reply = successReply((writer: XdrWriter) => {
    writer.bool(true).latin1(handle);
    writePostAttributes(writer, attributes);
    writeWccData(writer, change);
  });
  return replyWhenDurable(exported, reply, ...changed);
}

type CreateMode = { readonly mode: 'unchecked' | 'guarded'; readonly set: SetAttributes } | ExclusiveCreate;
interface ExclusiveCreate {
  readonly mode: 'exclusive';
  /**
   * The verifier, stored in the seconds of the new file's times; the client sets the real times afterwards (as with Linux's
   * server).
   */
  readonly times: readonly [atime: number, mtime: number];
}

function readCreateMode(exported: Export, reader: XdrReader): CreateMode {
  const mode = reader.u32();
  if (mode === 2) return { mode: 'exclusive', times: [reader.u32() & 0x7fff_ffff, reader.u32() & 0x7fff_ffff] };
  if (mode > 2) throw new XdrError(`${mode} is not a createmode3`);
  return { mode: mode === 1 ? 'guarded' : 'unchecked', set: localAttributes(exported, readSetAttributes(reader)) };
}

const create: ProcedureHandler = (exported, reader, who) => {
  const target = readCreationTarget(exported, reader, who);
  const how = readCreateMode(exported, reader);
  const { tree } = exported;
  const { directory } = target;
  const name = requireValidNewName(target.name);
  requireWritable(exported);
  const existing = tree.lookup(directory, name);
  if (existing === undefined) {
    requireDirectoryWrite(target.directoryStats, who);
    return createNew(target, how);
  }
  requirePermission(target.directoryStats, who, permission.execute);
  if (how.mode === 'guarded') refuse('EXIST');
  if (!existing.isFile()) refuse('EXIST');
  const node = tree.nodeFor(directory, name, existing);
  if (how.mode === 'exclusive') {
    if (!isFromSameCall(existing, how)) refuse('EXIST');
    return createdReply(target, node, existing, directory, node);
  }
  // UNCHECKED on an existing file sets only its size.
  const { size } = how.set;
  if (size !== undefined) tree.withOpenPath(node, (own, stats) => setAttributes(own, stats, { size }, who));
  return createdReply(target, node, tree.stat(node), node);
};

const nanosecondsPerSecond = 1_000_000_000n;
const isFromSameCall = (stats: BigIntStats, { times: [atime, mtime] }: ExclusiveCreate): boolean =>
  stats.size === 0n &&
  stats.atimeNs / nanosecondsPerSecond === BigInt(atime) &&
  stats.mtimeNs / nanosecondsPerSecond === BigInt(mtime);

const { O_CREAT, O_EXCL, O_RDWR, O_NOFOLLOW } = constants;

function createNew(target: CreationTarget, how: CreateMode): ReturnType<ProcedureHandler> {
  const { exported, directory, name, directoryStats: around, who } = target;
  const set = how.mode === 'exclusive' ? { mode: 0o600 } : how.set;
  const gid = groupForNew(around, who);
  const mode = allowedMode(set.mode ?? 0o644, gid, false, who);
  const path = exported.tree.pathForChange(directory, name);
  const fd = openSync(path, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, mode & 0o777);
  let [stats, wasChanged]: readonly [BigIntStats, boolean] = [around, false];
  try {
    [stats, wasChanged] = applyAttributes(fd, how, mode, gid, who);
  } catch (cause) {
    // This call created the file, so no other call uses it.
    closeSync(fd);
    unlinkSync(path);
    throw cause;
  }
  const node = exported.tree.nodeFor(directory, name, stats);
  // Keep the descriptor, since most new files are written soon.
  exported.tree.keepData(node, fd);
  return wasChanged ? createdReply(target, node, stats, directory, node) : createdReply(target, node, stats, directory);
}

/** Sets the owner, mode and other attributes of a new file. The boolean tells whether anything had to be changed. */
function applyAttributes(
  fd: number,
  how: CreateMode,
  mode: number,
  gid: number,
  who: Credentials,
): [BigIntStats, boolean] {
  const first = fstatSync(fd, bigint);
  const isOwned = Number(first.uid) === who.uid && Number(first.gid) === gid;
  if (!isOwned) fchownSync(fd, who.uid, gid);
  // Either the server's umask removed bits, or chown cleared some.
  const hasWantedMode = isOwned && (Number(first.mode) & 0o7777) === mode;
  if (!hasWantedMode) fchmodSync(fd, mode);
  if (how.mode === 'exclusive') futimesSync(fd, ...how.times);
  else if (setsMoreThanMode(how.set)) applyToNewFile(fd, how.set, first, who);
  else if (hasWantedMode) return [first, false];
  return [fstatSync(fd, bigint), true];
}

const setsMoreThanMode = (set: SetAttributes): boolean =>
  set.size !== undefined ||
  set.uid !== undefined ||
  set.gid !== undefined ||
  set.atime !== undefined ||
  set.mtime !== undefined;

/** Sets attributes other than the mode. A caller that may not change the owner keeps the file. */
function applyToNewFile(fd: number, set: SetAttributes, stats: BigIntStats, who: Credentials): void {
  if (set.size !== undefined && set.size > 0) ftruncateSync(fd, set.size);
  if (who.isRoot && (set.uid !== undefined || set.gid !== undefined))
    fchownSync(fd, set.uid ?? Number(stats.uid), set.gid ?? Number(stats.gid));
  setTimes(`/proc/self/fd/${fd}`, stats, set);
}

const mkdir: ProcedureHandler = (exported, reader, who) => {
  const site = readCreationTarget(exported, reader, who);
  const set = localAttributes(exported, readSetAttributes(reader));
  const name = requireValidNewName(site.name);
  requireWritable(exported);
  const { tree } = exported;
  requireDirectoryWrite(site.directoryStats, who);
  const gid = groupForNew(site.directoryStats, who);
  const mode = directoryModeIn(site.directoryStats, allowedMode(set.mode ?? 0o755, gid, true, who));
  const started = Date.now();
  mkdirSync(tree.pathForChange(site.directory, name), mode & 0o777);
  return chownNew(site, name, { ...set, mode }, gid, started);
};

const symlink: ProcedureHandler = (exported, reader, who) => {
  const site = readCreationTarget(exported, reader, who);
  const set = localAttributes(exported, readSetAttributes(reader));
  const target = readBytes(reader, maxPathBytes);
  const name = requireValidNewName(site.name);
  requireWritable(exported);
  if (target === '' || target.includes('\0')) refuse('INVAL');
  requireDirectoryWrite(site.directoryStats, who);
  const started = Date.now();
  // The server never follows the link; only clients interpret it.
  symlinkSync(toPath(target), exported.tree.pathForChange(site.directory, name));
  return chownNew(site, name, { ...set, mode: undefined }, groupForNew(site.directoryStats, who), started);
};

/** File system clocks advance in ticks, which can be late when the CPU is busy. */
const clockTickMs = 1_000;

/**
 * Changes the owner of a new object to the caller. The object has to be reopened by name, so this checks that it was just
 * created, and that no other user replaced it by another object in order to become its owner.
 */
function chownNew(
  target: CreationTarget,
  name: ByteString,
  set: SetAttributes,
  gid: number,
  started: number,
): ReturnType<ProcedureHandler> {
  const { exported, directory, who } = target;
  const { tree } = exported;
  const stats = tree.lookup(directory, name);
  if (stats === undefined) return refuse('NOENT');
  const node = tree.nodeFor(directory, name, stats);
  const uid = set.uid !== undefined && who.isRoot ? set.uid : who.uid;
  const group = set.gid !== undefined && who.isRoot ? set.gid : gid;
  const isOwned = Number(stats.uid) === uid && Number(stats.gid) === group;
  const isAsWanted = set.mode === undefined || (Number(stats.mode) & 0o7777) === set.mode;
  if (isOwned && isAsWanted && set.atime === undefined && set.mtime === undefined)
    return createdReply(target, node, stats, directory);
  tree.withOpenPath(node, (own, found) => {
    if (!wasJustCreated(found, started) || !isSameFile(found, node)) refuse('IO');
    if (!isOwned) chownSync(own, uid, group);
    if (set.mode !== undefined) chmodSync(own, set.mode);
    setTimes(own, found, set);
  });
  return createdReply(target, node, tree.stat(node), directory, node);
}

const wasJustCreated = (stats: BigIntStats, started: number): boolean =>
  Number(stats.uid) === process.geteuid?.() &&
  stats.nlink <= 2n &&
  (stats.birthtimeNs === 0n || stats.birthtimeMs >= BigInt(started - clockTickMs));

const mknod: ProcedureHandler = (exported, reader, who) => {
  const site = readCreationTarget(exported, reader, who);
  const type = reader.u32();
  requireValidNewName(site.name);
  requireWritable(exported);
  const { block, character, socket, fifo } = fileType;
  if (![block, character, socket, fifo].some((known) => known === type)) refuse('BADTYPE');
  // Node does not provide mknod(2).
  return refuse('NOTSUPP');
};

export const creationProcedures: readonly ProcedureDefinition[] = [
  { number: 8, name: 'CREATE', failureWords: 2, nonIdempotent: true, handle: create },
  { number: 9, name: 'MKDIR', failureWords: 2, nonIdempotent: true, handle: mkdir },
  { number: 10, name: 'SYMLINK', failureWords: 2, nonIdempotent: true, handle: symlink },
  { number: 11, name: 'MKNOD', failureWords: 2, nonIdempotent: true, handle: mknod },
];
