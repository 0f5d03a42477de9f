import { readlinkSync, statfsSync } from 'node:fs';
import type { Text } from '../../xdr/writer.ts';
import {
  maxNameBytes,
  maxTransferBytes,
  readSetAttributes,
  writeAttributes,
  writePostAttributes,
} from '../structures.ts';
import { grantedAccess, permission, requirePermission } from './access.ts';
import { writeWccData } from './attributes.ts';
import { readNode, requireWritable } from './export.ts';
import { readName, requireValidName } from './names.ts';
import { type ProcedureDefinition, type ProcedureHandler, replyWhenDurable, successReply } from './procedure.ts';
import { refuse } from './refusal.ts';
import { localAttributes, setAttributes } from './set-attributes.ts';

const getattr: ProcedureHandler = (exported, reader) => {
  const attributes = exported.toAttributes(exported.tree.stat(readNode(exported, reader)));
  return successReply((writer) => writeAttributes(writer, attributes));
};

const setattr: ProcedureHandler = (exported, reader, who) => {
  const { tree, toAttributes } = exported;
  const node = readNode(exported, reader);
  const set = localAttributes(exported, readSetAttributes(reader));
  const ifChangedAt = reader.bool() ? { seconds: reader.u32(), nanoseconds: reader.u32() } : undefined;
  requireWritable(exported);
  const change = tree.withOpenPath(node, (own, stats) => {
    const before = toAttributes(stats);
    if (
      ifChangedAt !== undefined &&
      (before.ctime !== ifChangedAt.seconds || before.ctimeNs !== ifChangedAt.nanoseconds)
    )
      refuse('NOT_SYNC');
    setAttributes(own, stats, set, who);
    return { before, after: toAttributes(tree.stat(node)) };
  });
  return replyWhenDurable(
    exported,
    successReply((writer) => writeWccData(writer, change)),
    node,
  );
};

const lookup: ProcedureHandler = (exported, reader, who) => {
  const { tree, nodes, toAttributes } = exported;
  const directory = readNode(exported, reader);
  const name = readName(reader);
  const directoryStats = tree.statDirectory(directory);
  requirePermission(directoryStats, who, permission.execute);
  const directoryAttributes = toAttributes(directoryStats);
  if (name === '..' && exported.isConfined) refuse('ACCES');
  if (name === '.' || name === '..') {
    const node = name === '.' ? directory : (directory.parent ?? tree.root);
    const attributes = toAttributes(tree.stat(node));
    return successReply((writer) => {
      writer.latin1(nodes.handleOf(node));
      writePostAttributes(writer, attributes);
      writePostAttributes(writer, directoryAttributes);
    });
  }
  const stats = tree.lookup(directory, requireValidName(name));
  if (stats === undefined) {
    return (writer) => {
      writer.u32(2);
      writePostAttributes(writer, directoryAttributes);
      return undefined;
    };
  }
  const handle = nodes.handleOf(tree.nodeFor(directory, name, stats));
  const attributes = toAttributes(stats);
  return successReply((writer) => {
    writer.latin1(handle);
    writePostAttributes(writer, attributes);
    writePostAttributes(writer, directoryAttributes);
  });
};

const access: ProcedureHandler = (exported, reader, who) => {
  const stats = exported.tree.stat(readNode(exported, reader));
  const rights = grantedAccess(stats, who, reader.u32(), exported.isReadOnly);
  const attributes = exported.toAttributes(stats);
  return successReply((writer) => {
    writePostAttributes(writer, attributes);
    writer.u32(rights);
  });
};

const readlink: ProcedureHandler = (exported, reader) => {
  const { tree, toAttributes } = exported;
  const node = readNode(exported, reader);
  const stats = tree.stat(node);
  if (!stats.isSymbolicLink() || node.parent === undefined) refuse('INVAL');
  const attributes = toAttributes(stats);
  const target: Text = readlinkSync(tree.pathForChange(node.parent, node.name), { encoding: 'buffer' });
  return successReply((writer) => {
    writePostAttributes(writer, attributes);
    writer.string(target);
  });
};

const fsstat: ProcedureHandler = (exported, reader) => {
  const { tree, toAttributes } = exported;
  const attributes = toAttributes(tree.stat(readNode(exported, reader)));
  const all = statfsSync(tree.openDirectory(tree.root).prefix, { bigint: true });
  return successReply((writer) => {
    writePostAttributes(writer, attributes);
    for (const blocks of [all.blocks, all.bfree, all.bavail]) writer.u64(blocks * all.bsize);
    writer.u64(all.files).u64(all.ffree).u64(all.ffree).u32(0);
  });
};

/** FSF3_LINK, FSF3_SYMLINK, FSF3_HOMOGENEOUS and FSF3_CANSETTIME. */
const properties = 0x01 | 0x02 | 0x08 | 0x10;
const preferredReaddirBytes = 64 * 1024;

const fsinfo: ProcedureHandler = (exported, reader) => {
  const attributes = exported.toAttributes(exported.tree.stat(readNode(exported, reader)));
  return successReply((writer) => {
    writePostAttributes(writer, attributes);
    for (const size of [maxTransferBytes, maxTransferBytes, 4096]) writer.u32(size);
    for (const size of [maxTransferBytes, maxTransferBytes, 4096]) writer.u32(size);
    // Node passes times to the kernel as floating-point seconds, which are exact to a microsecond.
    writer.u32(preferredReaddirBytes).size(Number.MAX_SAFE_INTEGER).u32(0).u32(1000).u32(properties);
  });
};

/** The limit of ext4; other file systems allow as many or more. */
const maxLinks = 65_000;

const pathconf: ProcedureHandler = (exported, reader) => {
  const attributes = exported.toAttributes(exported.tree.stat(readNode(exported, reader)));
  return successReply((writer) => {
    writePostAttributes(writer, attributes);
    writer.u32(maxLinks).u32(maxNameBytes).bool(true).bool(true).bool(false).bool(true);
  });
};

export const attributeProcedures: readonly ProcedureDefinition[] = [
  { number: 1, name: 'GETATTR', failureWords: 0, handle: getattr },
  { number: 2, name: 'SETATTR', failureWords: 2, nonIdempotent: true, handle: setattr },
  { number: 3, name: 'LOOKUP', failureWords: 1, handle: lookup },
  { number: 4, name: 'ACCESS', failureWords: 1, handle: access },
  { number: 5, name: 'READLINK', failureWords: 1, handle: readlink },
  { number: 18, name: 'FSSTAT', failureWords: 1, handle: fsstat },
  { number: 19, name: 'FSINFO', failureWords: 1, handle: fsinfo },
  { number: 20, name: 'PATHCONF', failureWords: 1, handle: pathconf },
];
