import { type BigIntStats, linkSync, lstatSync, renameSync, rmdirSync, unlinkSync } from 'node:fs';
import type { XdrReader } from '../../xdr/reader.ts';
import { writePostAttributes } from '../structures.ts';
import { check, checkChange, checkTake, may } from './access.ts';
import { writeChange } from './attributes.ts';
import { checkWritable, type Export, nodeOf } from './export.ts';
import { isSameFile } from './exported-tree.ts';
import { type ByteString, checkedName, checkedNewName, readName } from './names.ts';
import type { Node } from './nodes.ts';
import { type Definition, durable, ok, type Run } from './procedure.ts';
import { refuse } from './refusal.ts';

interface Spot {
  readonly directory: Node;
  readonly name: ByteString;
}

const readSpot = (exported: Export, reader: XdrReader): Spot => ({
  directory: nodeOf(exported, reader),
  name: readName(reader),
});

const changeOf = (exported: Export, { directory }: Spot, before: BigIntStats) => ({
  before: exported.describe(before),
  after: exported.describe(exported.tree.statDirectory(directory)),
});

const taking =
  (wantsDirectory: boolean): Run =>
  (exported, reader, who) => {
    const { tree } = exported;
    const spot = readSpot(exported, reader);
    const { directory } = spot;
    const around = tree.statDirectory(directory);
    const name = checkedName(spot.name);
    checkWritable(exported);
    const stats = tree.look(directory, name);
    if (stats === undefined) {
      check(around, who, may.execute);
      return refuse('NOENT');
    }
    checkTake(around, stats, who);
    if (wantsDirectory) {
      if (!stats.isDirectory()) refuse('NOTDIR');
      rmdirSync(tree.at(directory, name));
    } else {
      if (stats.isDirectory()) refuse('ISDIR');
      unlinkSync(tree.at(directory, name));
    }
    tree.removed(stats);
    const change = changeOf(exported, spot, around);
    return durable(
      exported,
      ok((writer) => writeChange(writer, change)),
      directory,
    );
  };

const rename: Run = (exported, reader, who) => {
  const { tree } = exported;
  const [from, to] = [readSpot(exported, reader), readSpot(exported, reader)];
  const [before, target] = [tree.statDirectory(from.directory), tree.statDirectory(to.directory)];
  const [name, newName] = [checkedName(from.name), checkedName(to.name)];
  checkWritable(exported);
  const stats = tree.look(from.directory, name);
  if (stats === undefined) return refuse('NOENT');
  checkTake(before, stats, who);
  const replaced = tree.look(to.directory, newName);
  if (replaced === undefined) checkChange(target, who);
  else checkTake(target, replaced, who);
  // A directory that moves gets another "..": who moves it must be able to write to it.
  if (stats.isDirectory() && from.directory !== to.directory) check(stats, who, may.write);
  renameSync(tree.at(from.directory, name), tree.at(to.directory, newName));
  // Two names of one file: the system leaves both.
  const isSame = replaced !== undefined && replaced.ino === stats.ino;
  if (replaced !== undefined && !isSame) tree.removed(replaced);
  if (!isSame) tree.changed(tree.child(to.directory, newName, stats));
  const changes = [changeOf(exported, from, before), changeOf(exported, to, target)] as const;
  const reply = ok((writer) => {
    for (const change of changes) writeChange(writer, change);
  });
  return from.directory === to.directory
    ? durable(exported, reply, to.directory)
    : durable(exported, reply, from.directory, to.directory);
};

const link: Run = (exported, reader, who) => {
  const { tree, describe } = exported;
  const node = nodeOf(exported, reader);
  const to = readSpot(exported, reader);
  const stats = tree.stat(node);
  const around = tree.statDirectory(to.directory);
  const name = checkedNewName(to.name);
  checkWritable(exported);
  if (stats.isDirectory() || node.parent === undefined) return refuse('ISDIR');
  checkChange(around, who);
  const path = tree.at(to.directory, name);
  linkSync(tree.at(node.parent, node.name), path);
  tree.changed(node);
  // By name, since the system links no other way here: another file may have come to that name.
  const linked = lstatSync(path, { bigint: true });
  if (!isSameFile(linked, node)) {
    unlinkSync(path);
    refuse('JUKEBOX');
  }
  const attributes = describe(linked);
  const change = changeOf(exported, to, around);
  const reply = ok((writer) => {
    writePostAttributes(writer, attributes);
    writeChange(writer, change);
  });
  return durable(exported, reply, to.directory);
};

export const naming: readonly Definition[] = [
  { number: 12, name: 'REMOVE', blanks: 2, once: true, run: taking(false) },
  { number: 13, name: 'RMDIR', blanks: 2, once: true, run: taking(true) },
  { number: 14, name: 'RENAME', blanks: 4, once: true, run: rename },
  { number: 15, name: 'LINK', blanks: 3, once: true, run: link },
];
