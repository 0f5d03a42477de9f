import { readlinkSync, statfsSync } from 'node:fs';
import type { Text } from '../../xdr/writer.ts';
import { maxName, maxTransfer, readSetAttributes, writeAttributes, writePostAttributes } from '../structures.ts';
import { check, granted, may } from './access.ts';
import { writeChange } from './attributes.ts';
import { checkWritable, nodeOf } from './export.ts';
import { checkedName, readName } from './names.ts';
import { type Definition, durable, ok, type Run } from './procedure.ts';
import { refuse } from './refusal.ts';
import { localAttributes, setAttributes } from './set-attributes.ts';

const getattr: Run = (exported, reader) => {
  const attributes = exported.describe(exported.tree.stat(nodeOf(exported, reader)));
  return ok((writer) => writeAttributes(writer, attributes));
};

const setattr: Run = (exported, reader, who) => {
  const { tree, describe } = exported;
  const node = nodeOf(exported, reader);
  const set = localAttributes(exported, readSetAttributes(reader));
  const ifChangedAt = reader.bool() ? { seconds: reader.u32(), nanoseconds: reader.u32() } : undefined;
  checkWritable(exported);
  const change = tree.holding(node, (own, stats) => {
    const before = describe(stats);
    if (
      ifChangedAt !== undefined &&
      (before.ctime !== ifChangedAt.seconds || before.ctimeNs !== ifChangedAt.nanoseconds)
    )
      refuse('NOT_SYNC');
    setAttributes(own, stats, set, who);
    return { before, after: describe(tree.stat(node)) };
  });
  return durable(
    exported,
    ok((writer) => writeChange(writer, change)),
    node,
  );
};

const lookup: Run = (exported, reader, who) => {
  const { tree, nodes, describe } = exported;
  const directory = nodeOf(exported, reader);
  const name = readName(reader);
  const above = tree.statDirectory(directory);
  check(above, who, may.execute);
  const around = describe(above);
  if (name === '..' && exported.isConfined) refuse('ACCES');
  if (name === '.' || name === '..') {
    const node = name === '.' ? directory : (directory.parent ?? tree.root);
    const own = describe(tree.stat(node));
    return ok((writer) => {
      writer.latin1(nodes.handleOf(node));
      writePostAttributes(writer, own);
      writePostAttributes(writer, around);
    });
  }
  const stats = tree.look(directory, checkedName(name));
  if (stats === undefined) {
    return (writer) => {
      writer.u32(2);
      writePostAttributes(writer, around);
      return undefined;
    };
  }
  const handle = nodes.handleOf(tree.child(directory, name, stats));
  const attributes = describe(stats);
  return ok((writer) => {
    writer.latin1(handle);
    writePostAttributes(writer, attributes);
    writePostAttributes(writer, around);
  });
};

const access: Run = (exported, reader, who) => {
  const stats = exported.tree.stat(nodeOf(exported, reader));
  const rights = granted(stats, who, reader.u32(), exported.isReadOnly);
  const attributes = exported.describe(stats);
  return ok((writer) => {
    writePostAttributes(writer, attributes);
    writer.u32(rights);
  });
};

const readlink: Run = (exported, reader) => {
  const { tree, describe } = exported;
  const node = nodeOf(exported, reader);
  const stats = tree.stat(node);
  if (!stats.isSymbolicLink() || node.parent === undefined) refuse('INVAL');
  const attributes = describe(stats);
  const target: Text = readlinkSync(tree.at(node.parent, node.name), { encoding: 'buffer' });
  return ok((writer) => {
    writePostAttributes(writer, attributes);
    writer.string(target);
  });
};

const fsstat: Run = (exported, reader) => {
  const { tree, describe } = exported;
  const attributes = describe(tree.stat(nodeOf(exported, reader)));
  const all = statfsSync(tree.directory(tree.root).prefix, { bigint: true });
  return ok((writer) => {
    writePostAttributes(writer, attributes);
    for (const blocks of [all.blocks, all.bfree, all.bavail]) writer.u64(blocks * all.bsize);
    writer.u64(all.files).u64(all.ffree).u64(all.ffree).u32(0);
  });
};

/** Hard links, symbolic links, PATHCONF the same for all files, times can be set. */
const properties = 0x01 | 0x02 | 0x08 | 0x10;
const preferredReaddir = 64 * 1024;

const fsinfo: Run = (exported, reader) => {
  const attributes = exported.describe(exported.tree.stat(nodeOf(exported, reader)));
  return ok((writer) => {
    writePostAttributes(writer, attributes);
    for (const size of [maxTransfer, maxTransfer, 4096]) writer.u32(size);
    for (const size of [maxTransfer, maxTransfer, 4096]) writer.u32(size);
    // Node gives times to the system as floating-point seconds, which are exact to a microsecond.
    writer.u32(preferredReaddir).size(Number.MAX_SAFE_INTEGER).u32(0).u32(1000).u32(properties);
  });
};

/** What ext4 takes; others take as many or more. */
const maxLinks = 65_000;

const pathconf: Run = (exported, reader) => {
  const attributes = exported.describe(exported.tree.stat(nodeOf(exported, reader)));
  return ok((writer) => {
    writePostAttributes(writer, attributes);
    writer.u32(maxLinks).u32(maxName).bool(true).bool(true).bool(false).bool(true);
  });
};

export const aboutFiles: readonly Definition[] = [
  { number: 1, name: 'GETATTR', blanks: 0, run: getattr },
  { number: 2, name: 'SETATTR', blanks: 2, once: true, run: setattr },
  { number: 3, name: 'LOOKUP', blanks: 1, run: lookup },
  { number: 4, name: 'ACCESS', blanks: 1, run: access },
  { number: 5, name: 'READLINK', blanks: 1, run: readlink },
  { number: 18, name: 'FSSTAT', blanks: 1, run: fsstat },
  { number: 19, name: 'FSINFO', blanks: 1, run: fsinfo },
  { number: 20, name: 'PATHCONF', blanks: 1, run: pathconf },
];
