/**
 * Changes names, files and directories at random and compares them with a model. Fails at the first difference.
 * Arguments: an empty folder, the seed, the number of changes.
 */

import assert from 'node:assert/strict';
import * as fs from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

interface File {
  content: string;
  /** The number of its hard links. */
  names: number;
  mode: number;
}
type Entry = File | { readonly to: string } | Map<string, Entry>;
type Directory = Map<string, Entry>;
interface Place {
  readonly parent: Directory;
  readonly name: string;
  readonly path: string;
  readonly thing: Entry | undefined;
}

const [, , at = '', seed = '1', count = '100'] = process.argv;
const root: Directory = new Map();
const namesPerDirectory = 6;
const maxDepth = 3;
/** Open files without a name. All of them were in the root, because a directory with such a file cannot be removed. */
const unlinkedFiles: { readonly fd: number; readonly file: File }[] = [];
const maxUnlinked = 5;
let state = Number(seed) >>> 0;

/** Mulberry32: the same seed gives the same run. */
function randomBelow(limit: number): number {
  state = (state + 0x6d2b_79f5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), state | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) % limit;
}

const isDirectory = (thing: Entry | undefined): thing is Directory => thing instanceof Map;
const isFile = (thing: Entry | undefined): thing is File => thing !== undefined && 'content' in thing;

/** A random path in some directory. It may not exist. */
function randomPlace(): Place {
  let parent = root;
  let path = at;
  for (let depth = 0; ; depth++) {
    const name = `n${randomBelow(namesPerDirectory)}`;
    const thing = parent.get(name);
    path = join(path, name);
    if (!isDirectory(thing) || depth >= maxDepth || randomBelow(3) === 0) return { parent, name, path, thing };
    parent = thing;
  }
}

/**
 * If `error` is undefined, the change must succeed; otherwise it must fail with that error. Returns whether it
 * succeeded.
 */
function expectResult(change: () => void, error: string | undefined): boolean {
  if (error === undefined) {
    change();
    return true;
  }
  assert.throws(change, { code: error });
  return false;
}

function make({ parent, name, path, thing }: Place, made: Entry, change: () => void): void {
  if (expectResult(change, thing === undefined ? undefined : 'EEXIST')) parent.set(name, made);
  assert.ok(fs.lstatSync(path));
}

function write({ parent, name, path, thing }: Place): void {
  if (thing !== undefined && !isFile(thing)) return;
  const content = `${name} ${randomBelow(1e9)} `.repeat(1 + randomBelow(400));
  const before = thing ?? { content: '', names: 1, mode: 0o644 };
  const isAppended = randomBelow(2) === 0;
  (isAppended ? fs.appendFileSync : fs.writeFileSync)(path, content);
  before.content = isAppended ? before.content + content : content;
  parent.set(name, before);
  read({ parent, name, path, thing: before });
}

function read({ path, thing }: Place): void {
  if (isFile(thing)) {
    assert.equal(fs.readFileSync(path, 'utf8'), thing.content);
    const { nlink, mode, size } = fs.statSync(path);
    assert.deepEqual(
      { nlink, mode: mode & 0o777, size },
      { nlink: thing.names, mode: thing.mode, size: thing.content.length },
    );
  } else if (isDirectory(thing)) assert.deepEqual(namesIn(path), [...thing.keys()].toSorted());
  else if (thing !== undefined) assert.equal(fs.readlinkSync(path), thing.to);
  else assert.throws(() => fs.lstatSync(path), { code: 'ENOENT' });
}

const namesIn = (path: string): string[] => fs.readdirSync(path).toSorted();

function truncate({ path, thing }: Place): void {
  if (!isFile(thing)) return;
  const length = randomBelow(thing.content.length + 1);
  fs.truncateSync(path, length);
  thing.content = thing.content.slice(0, length);
}

function chmod({ path, thing }: Place): void {
  if (!isFile(thing)) return;
  thing.mode = 0o400 + randomBelow(0o400);
  fs.chmodSync(path, thing.mode);
}

function link(from: Place, to: Place): void {
  if (!isFile(from.thing)) return;
  if (!expectResult(() => fs.linkSync(from.path, to.path), to.thing === undefined ? undefined : 'EEXIST')) return;
  from.thing.names++;
  to.parent.set(to.name, from.thing);
}

/** Keeps some files open when they lose a name. Their contents must stay until they are closed. */
function keepOpen({ parent, path, thing }: Place): void {
  if (isFile(thing) && parent === root && unlinkedFiles.length < maxUnlinked)
    unlinkedFiles.push({ fd: fs.openSync(path, 'r+'), file: thing });
}

function unlink(place: Place): void {
  const { parent, name, path, thing } = place;
  if (isDirectory(thing)) return;
  keepOpen(place);
  if (!expectResult(() => fs.unlinkSync(path), thing === undefined ? 'ENOENT' : undefined)) return;
  if (isFile(thing)) thing.names--;
  parent.delete(name);
}

function closeUnlinked(): void {
  for (const { fd, file } of unlinkedFiles.splice(0)) {
    assert.equal(fs.readFileSync(fd, 'utf8'), file.content);
    assert.equal(fs.fstatSync(fd).nlink, file.names);
    const more = 'written to what has lost a name ';
    fs.writeSync(fd, more, file.content.length);
    file.content += more;
    assert.equal(fs.fstatSync(fd).size, file.content.length);
    fs.closeSync(fd);
  }
}

function rmdir({ parent, name, path, thing }: Place): void {
  const other = thing === undefined ? 'ENOENT' : 'ENOTDIR';
  const error = isDirectory(thing) ? (thing.size > 0 ? 'ENOTEMPTY' : undefined) : other;
  if (expectResult(() => fs.rmdirSync(path), error)) parent.delete(name);
}

/** Replaces the target if both are files. */
function rename(from: Place, to: Place): void {
  if (from.thing === undefined || isDirectory(to.thing) || `${to.path}/`.startsWith(`${from.path}/`)) return;
  if (isDirectory(from.thing) && to.thing !== undefined) return;
  if (from.thing !== to.thing) keepOpen(to);
  fs.renameSync(from.path, to.path);
  // rename(2) between two names of the same file does nothing.
  if (from.thing === to.thing) return;
  if (isFile(to.thing)) to.thing.names--;
  from.parent.delete(from.name);
  to.parent.set(to.name, from.thing);
}

const changes: readonly (() => void)[] = [
  () => {
    const place = randomPlace();
    make(place, new Map(), () => fs.mkdirSync(place.path));
  },
  () => {
    const place = randomPlace();
    make(place, { content: 'new', names: 1, mode: 0o644 }, () => fs.writeFileSync(place.path, 'new', { flag: 'wx' }));
  },
  () => {
    const place = randomPlace();
    make(place, { to: place.name }, () => fs.symlinkSync(place.name, place.path));
  },
  () => write(randomPlace()),
  () => write(randomPlace()),
  () => truncate(randomPlace()),
  () => chmod(randomPlace()),
  () => link(randomPlace(), randomPlace()),
  () => unlink(randomPlace()),
  () => unlink(randomPlace()),
  () => (unlinkedFiles.length === maxUnlinked ? closeUnlinked() : undefined),
  () => rmdir(randomPlace()),
  () => rename(randomPlace(), randomPlace()),
  () => rename(randomPlace(), randomPlace()),
  () => read(randomPlace()),
];

function compareAll(directory: Directory, path: string): void {
  assert.deepEqual(namesIn(path), [...directory.keys()].toSorted());
  for (const [name, thing] of directory) {
    read({ parent: directory, name, path: join(path, name), thing });
    if (isDirectory(thing)) compareAll(thing, join(path, name));
  }
}

process.umask(0o022);
for (let i = 0; i < Number(count); i++) {
  try {
    changes[randomBelow(changes.length)]?.();
  } catch (cause) {
    throw new Error(`seed ${seed}, change ${i}`, { cause });
  }
}
closeUnlinked();
compareAll(root, at);
