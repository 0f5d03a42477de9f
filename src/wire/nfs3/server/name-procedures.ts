import { type BigIntStats, linkSync, lstatSync, renameSync, rmdirSync, unlinkSync } from 'node:fs';
import type { XdrReader } from '../../xdr/reader.ts';
import { writePostAttributes } from '../structures.ts';
import { permission, requireDirectoryWrite, requirePermission, requireRemoval } from './access.ts';
import { writeWccData } from './attributes.ts';
import { type Export, readNode, requireWritable } from './export.ts';
import { isSameFile } from './exported-tree.ts';
import { type ByteString, readName, requireValidName, requireValidNewName } from './names.ts';
import type { Node } from './nodes.ts';
import { type ProcedureDefinition, type ProcedureHandler, replyWhenDurable, successReply } from './procedure.ts';
import { refuse } from './refusal.ts';

interface DirectoryName {
  readonly directory: Node;
  readonly name: ByteString;
}

const readDirectoryName = (exported: Export, reader: XdrReader): DirectoryName => ({
  directory: readNode(exported, reader),
  name: readName(reader),
});

const wccData = (exported: Export, { directory }: DirectoryName, before: BigIntStats) => ({
  before: exported.toAttributes(before),
  after: exported.toAttributes(exported.tree.statDirectory(directory)),
});

const removeHandler =
  (wantsDirectory: boolean): ProcedureHandler =>
  (exported, reader, who) => {
    const { tree } = exported;
    const target = readDirectoryName(exported, reader);
    const { directory } = target;
    const directoryStats = tree.statDirectory(directory);
    const name = requireValidName(target.name);
    requireWritable(exported);
    const stats = tree.lookup(directory, name);
    if (stats === undefined) {
      requirePermission(directoryStats, who, permission.execute);
      return refuse('NOENT');
    }
    requireRemoval(directoryStats, stats, who);
    if (wantsDirectory) {
      if (!stats.isDirectory()) refuse('NOTDIR');
      rmdirSync(tree.pathForChange(directory, name));
    } else {
      if (stats.isDirectory()) refuse('ISDIR');
      unlinkSync(tree.pathForChange(directory, name));
    }
    tree.noteRemoval(stats);
    const change = wccData(exported, target, directoryStats);
    return replyWhenDurable(
      exported,
      successReply((writer) => writeWccData(writer, change)),
      directory,
    );
  };

const rename: ProcedureHandler = (exported, reader, who) => {
  const { tree } = exported;
  const [from, to] = [readDirectoryName(exported, reader), readDirectoryName(exported, reader)];
  const [before, target] = [tree.statDirectory(from.directory), tree.statDirectory(to.directory)];
  const [name, newName] = [requireValidName(from.name), requireValidName(to.name)];
  requireWritable(exported);
  const stats = tree.lookup(from.directory, name);
  if (stats === undefined) return refuse('NOENT');
  requireRemoval(before, stats, who);
  const replaced = tree.lookup(to.directory, newName);
  if (replaced === undefined) requireDirectoryWrite(target, who);
  else requireRemoval(target, replaced, who);
  // Moving a directory changes its "..", so the caller needs write permission on it.
  if (stats.isDirectory() && from.directory !== to.directory) requirePermission(stats, who, permission.write);
  renameSync(tree.pathForChange(from.directory, name), tree.pathForChange(to.directory, newName));
  // If both names are links to one file, rename(2) leaves both.
  const isSame = replaced !== undefined && replaced.ino === stats.ino;
  if (replaced !== undefined && !isSame) tree.noteRemoval(replaced);
  if (!isSame) tree.noteChange(tree.nodeFor(to.directory, newName, stats));
  const changes = [wccData(exported, from, before), wccData(exported, to, target)] as const;
  const reply = successReply((writer) => {
    for (const change of changes) writeWccData(writer, change);
  });
  return from.directory === to.directory
    ? replyWhenDurable(exported, reply, to.directory)
    : replyWhenDurable(exported, reply, from.directory, to.directory);
};

const link: ProcedureHandler = (exported, reader, who) => {
  const { tree, toAttributes } = exported;
  const node = readNode(exported, reader);
  const to = readDirectoryName(exported, reader);
  const stats = tree.stat(node);
  const directoryStats = tree.statDirectory(to.directory);
  const name = requireValidNewName(to.name);
  requireWritable(exported);
  if (stats.isDirectory() || node.parent === undefined) return refuse('ISDIR');
  requireDirectoryWrite(directoryStats, who);
  const path = tree.pathForChange(to.directory, name);
  linkSync(tree.pathForChange(node.parent, node.name), path);
  tree.noteChange(node);
  // The link is created by name, so another file may have got the name meanwhile.
  const linked = lstatSync(path, { bigint: true });
  if (!isSameFile(linked, node)) {
    unlinkSync(path);
    refuse('JUKEBOX');
  }
  const attributes = toAttributes(linked);
  const change = wccData(exported, to, directoryStats);
  const reply = successReply((writer) => {
    writePostAttributes(writer, attributes);
    writeWccData(writer, change);
  });
  return replyWhenDurable(exported, reply, to.directory);
};

export const nameProcedures: readonly ProcedureDefinition[] = [
  { number: 12, name: 'REMOVE', failureWords: 2, nonIdempotent: true, handle: removeHandler(false) },
  { number: 13, name: 'RMDIR', failureWords: 2, nonIdempotent: true, handle: removeHandler(true) },
  { number: 14, name: 'RENAME', failureWords: 4, nonIdempotent: true, handle: rename },
  { number: 15, name: 'LINK', failureWords: 3, nonIdempotent: true, handle: link },
];
