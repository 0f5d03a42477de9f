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
import { fileType, maxPath, readSetAttributes, type SetAttributes, writePostAttributes } from '../structures.ts';
import { check, checkChange, givenMode, groupIn, may, modeIn } from './access.ts';
import { writeChange } from './attributes.ts';
import { checkWritable, type Export, nodeOf } from './export.ts';
import { isSameFile } from './exported-tree.ts';
import type { Who } from './identities.ts';
import { type ByteString, checkedNewName, readBytes, readName, toPath } from './names.ts';
import type { Node } from './nodes.ts';
import { type Definition, durable, ok, type Run } from './procedure.ts';
import { refuse } from './refusal.ts';
import { localAttributes, setAttributes, setTimes } from './set-attributes.ts';

const bigint = { bigint: true } as const;

/** Where something is to be made, and by whom. */
interface Site {
  readonly exported: Export;
  readonly directory: Node;
  readonly name: ByteString;
  readonly around: BigIntStats;
  readonly who: Who;
}

function readSite(exported: Export, reader: XdrReader, who: Who): Site {
  const directory = nodeOf(exported, reader);
  const name = readName(reader);
  return { exported, directory, name, around: exported.tree.statDirectory(directory), who };
}

/**
 * What every procedure that makes something answers: the handle, attributes, and what became of the directory. `changed`
 * is what has to be on the disk before: the directory, and what was given to the new file after it was made.
 */
function made(
  { exported, directory, around }: Site,
  node: Node,
  stats: BigIntStats,
  ...changed: Node[]
): ReturnType<Run> {
  const { describe, nodes, tree } = exported;
  const handle = nodes.handleOf(node);
  const attributes = describe(stats);
  const change = { before: describe(around), after: describe(tree.statDirectory(directory)) };
  const reply = ok((writer: XdrWriter) => {
    writer.bool(true).latin1(handle);
    writePostAttributes(writer, attributes);
    writeChange(writer, change);
  });
  return durable(exported, reply, ...changed);
}

type How = { readonly mode: 'unchecked' | 'guarded'; readonly set: SetAttributes } | ExclusiveHow;
interface ExclusiveHow {
  readonly mode: 'exclusive';
  /** Kept in the times of the new file, in seconds; the client sets these afterwards (as Linux does it). */
  readonly times: readonly [atime: number, mtime: number];
}

function readHow(exported: Export, reader: XdrReader): How {
  const how = reader.u32();
  if (how === 2) return { mode: 'exclusive', times: [reader.u32() & 0x7fff_ffff, reader.u32() & 0x7fff_ffff] };
  if (how > 2) throw new XdrError(`${how} is no way to create a file`);
  return { mode: how === 1 ? 'guarded' : 'unchecked', set: localAttributes(exported, readSetAttributes(reader)) };
}

const create: Run = (exported, reader, who) => {
  const site = readSite(exported, reader, who);
  const how = readHow(exported, reader);
  const { tree } = exported;
  const { directory } = site;
  const name = checkedNewName(site.name);
  checkWritable(exported);
  const present = tree.look(directory, name);
  if (present === undefined) {
    checkChange(site.around, who);
    return createNew(site, how);
  }
  check(site.around, who, may.execute);
  if (how.mode === 'guarded') refuse('EXIST');
  if (!present.isFile()) refuse('EXIST');
  const node = tree.child(directory, name, present);
  if (how.mode === 'exclusive') {
    if (!isFromSameCall(present, how)) refuse('EXIST');
    return made(site, node, present, directory, node);
  }
  // It was there: its size may be wanted otherwise, nothing else.
  const { size } = how.set;
  if (size !== undefined) tree.holding(node, (own, stats) => setAttributes(own, stats, { size }, who));
  return made(site, node, tree.stat(node), node);
};

const perSecond = 1_000_000_000n;
const isFromSameCall = (stats: BigIntStats, { times: [atime, mtime] }: ExclusiveHow): boolean =>
  stats.size === 0n && stats.atimeNs / perSecond === BigInt(atime) && stats.mtimeNs / perSecond === BigInt(mtime);

const { O_CREAT, O_EXCL, O_RDWR, O_NOFOLLOW } = constants;

function createNew(site: Site, how: How): ReturnType<Run> {
  const { exported, directory, name, around, who } = site;
  const set = how.mode === 'exclusive' ? { mode: 0o600 } : how.set;
  const gid = groupIn(around, who);
  const mode = givenMode(set.mode ?? 0o644, gid, false, who);
  const path = exported.tree.at(directory, name);
  const fd = openSync(path, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, mode & 0o777);
  let [stats, isDressed]: readonly [BigIntStats, boolean] = [around, false];
  try {
    [stats, isDressed] = dressed(fd, how, mode, gid, who);
  } catch (cause) {
    // It was made by this call, so nobody misses it.
    closeSync(fd);
    unlinkSync(path);
    throw cause;
  }
  const node = exported.tree.child(directory, name, stats);
  // Most new files are written to at once.
  exported.tree.keepData(node, fd);
  return isDressed ? made(site, node, stats, directory, node) : made(site, node, stats, directory);
}

/** Gives a new file its owner, mode and whatever else was asked for. */
function dressed(fd: number, how: How, mode: number, gid: number, who: Who): [BigIntStats, boolean] {
  const first = fstatSync(fd, bigint);
  const isOwned = Number(first.uid) === who.uid && Number(first.gid) === gid;
  if (!isOwned) fchownSync(fd, who.uid, gid);
  // The server's own umask took some away; or the owner changed, which does so, too.
  const isAsWanted = isOwned && (Number(first.mode) & 0o7777) === mode;
  if (!isAsWanted) fchmodSync(fd, mode);
  if (how.mode === 'exclusive') futimesSync(fd, ...how.times);
  else if (hasMore(how.set)) applyToNew(fd, how.set, first, who);
  else if (isAsWanted) return [first, false];
  return [fstatSync(fd, bigint), true];
}

const hasMore = (set: SetAttributes): boolean =>
  set.size !== undefined ||
  set.uid !== undefined ||
  set.gid !== undefined ||
  set.atime !== undefined ||
  set.mtime !== undefined;

/** What a client may ask for beyond the mode. Who may not give a file away makes it, and keeps it. */
function applyToNew(fd: number, set: SetAttributes, stats: BigIntStats, who: Who): void {
  if (set.size !== undefined && set.size > 0) ftruncateSync(fd, set.size);
  if (who.isRoot && (set.uid !== undefined || set.gid !== undefined))
    fchownSync(fd, set.uid ?? Number(stats.uid), set.gid ?? Number(stats.gid));
  setTimes(`/proc/self/fd/${fd}`, stats, set);
}

const mkdir: Run = (exported, reader, who) => {
  const site = readSite(exported, reader, who);
  const set = localAttributes(exported, readSetAttributes(reader));
  const name = checkedNewName(site.name);
  checkWritable(exported);
  const { tree } = exported;
  checkChange(site.around, who);
  const gid = groupIn(site.around, who);
  const mode = modeIn(site.around, givenMode(set.mode ?? 0o755, gid, true, who));
  const started = Date.now();
  mkdirSync(tree.at(site.directory, name), mode & 0o777);
  return handOver(site, name, { ...set, mode }, gid, started);
};

const symlink: Run = (exported, reader, who) => {
  const site = readSite(exported, reader, who);
  const set = localAttributes(exported, readSetAttributes(reader));
  const target = readBytes(reader, maxPath);
  const name = checkedNewName(site.name);
  checkWritable(exported);
  if (target === '' || target.includes('\0')) refuse('INVAL');
  checkChange(site.around, who);
  const started = Date.now();
  // Never followed here: what it means is for the client to find out.
  symlinkSync(toPath(target), exported.tree.at(site.directory, name));
  return handOver(site, name, { ...set, mode: undefined }, groupIn(site.around, who), started);
};

/** Clocks of file systems go in ticks, which come late where others have the processor. */
const tickMs = 1_000;

/**
 * Gives what was made to the caller. By its name, as the system has no other way: so it must be what was made just now,
 * and not something that another one put in its place to be given it.
 */
function handOver(site: Site, name: ByteString, set: SetAttributes, gid: number, started: number): ReturnType<Run> {
  const { exported, directory, who } = site;
  const { tree } = exported;
  const stats = tree.look(directory, name);
  if (stats === undefined) return refuse('NOENT');
  const node = tree.child(directory, name, stats);
  const uid = set.uid !== undefined && who.isRoot ? set.uid : who.uid;
  const group = set.gid !== undefined && who.isRoot ? set.gid : gid;
  const isOwned = Number(stats.uid) === uid && Number(stats.gid) === group;
  const isAsWanted = set.mode === undefined || (Number(stats.mode) & 0o7777) === set.mode;
  if (isOwned && isAsWanted && set.atime === undefined && set.mtime === undefined)
    return made(site, node, stats, directory);
  tree.holding(node, (own, found) => {
    if (!isNew(found, started) || !isSameFile(found, node)) refuse('IO');
    if (!isOwned) chownSync(own, uid, group);
    if (set.mode !== undefined) chmodSync(own, set.mode);
    setTimes(own, found, set);
  });
  return made(site, node, tree.stat(node), directory, node);
}

const isNew = (stats: BigIntStats, started: number): boolean =>
  Number(stats.uid) === process.geteuid?.() &&
  stats.nlink <= 2n &&
  (stats.birthtimeNs === 0n || stats.birthtimeMs >= BigInt(started - tickMs));

const mknod: Run = (exported, reader, who) => {
  const site = readSite(exported, reader, who);
  const type = reader.u32();
  checkedNewName(site.name);
  checkWritable(exported);
  const { block, character, socket, fifo } = fileType;
  if (![block, character, socket, fifo].some((known) => known === type)) refuse('BADTYPE');
  // Node has no system call for it.
  return refuse('NOTSUPP');
};

export const making: readonly Definition[] = [
  { number: 8, name: 'CREATE', blanks: 2, once: true, run: create },
  { number: 9, name: 'MKDIR', blanks: 2, once: true, run: mkdir },
  { number: 10, name: 'SYMLINK', blanks: 2, once: true, run: symlink },
  { number: 11, name: 'MKNOD', blanks: 2, once: true, run: mknod },
];
