import { readFileSync } from 'node:fs';
import { mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { mountTable, parseMountinfo, readBounded, readMountTable } from './mountinfo.ts';

const escaped = (text: string): string =>
  text.replace(/[ \t\n\\#]/g, (c) => `\\${c.charCodeAt(0).toString(8).padStart(3, '0')}`);

const name = fc.string({ unit: fc.constantFrom(...'ab \t\n\\#-0é漢'), minLength: 1, maxLength: 8 });
const path = fc.array(name, { maxLength: 4 }).map((names) => `/${names.join('/')}`);
const entry = fc.record({
  id: fc.nat(),
  parent: fc.nat(),
  device: fc.tuple(fc.nat(4095), fc.nat(1_048_575)).map(([major, minor]) => `${major}:${minor}`),
  root: path,
  at: path,
  options: fc.subarray(['noexec', 'relatime', 'nosuid']).map((rest) => ['rw', ...rest]),
  propagation: fc.subarray(['shared:3', 'master:12', 'propagate_from:4', 'unbindable']),
  type: fc.constantFrom('ext4', 'fuse.sshfs', 'xfs'),
  source: fc.oneof(fc.constant(''), name),
  superOptions: fc
    .subarray(['seclabel', 'size=4k', 'errors=remount-ro'], { minLength: 1 })
    .map((rest) => ['rw', ...rest]),
});

describe('mountinfo', () => {
  test('parses whatever the kernel writes, including escapes, empty sources and optional fields', () => {
    fc.assert(
      fc.property(fc.array(entry), (entries) => {
        const text = entries.map((e) =>
          [
            e.id,
            e.parent,
            e.device,
            escaped(e.root),
            escaped(e.at),
            e.options,
            ...e.propagation,
            '-',
            e.type,
            escaped(e.source),
            e.superOptions,
          ]
            .map(String)
            .join(' '),
        );
        expect(parseMountinfo(`${text.join('\n')}\n`)).toEqual(
          entries.map((e) => ({ ...e, readOnly: false, mountReadOnly: false })),
        );
      }),
    );
  });

  test('neither throws nor hangs on a nonsensical table', () => {
    const line = fc
      .tuple(fc.nat(3), fc.nat(3), fc.constantFrom('/', '/1', '1', ''))
      .map(([id, parent, at]) => `${id} ${parent} 8:1 / ${at} rw - x y rw`);
    const noise = fc.string({ unit: fc.constantFrom(' ', '-', '/', '1', '\\'), maxLength: 20 });
    fc.assert(
      fc.property(fc.array(fc.oneof(line, noise)), (lines) => {
        const table = mountTable(parseMountinfo(lines.join('\n')));
        expect(table.visible().length).toBeLessThanOrEqual(table.entries.length);
      }),
    );
  });

  test('distinguishes a read-only mount from a read-only file system', () => {
    const [mount, fileSystem, neither] = parseMountinfo(
      [
        '30 1 8:1 /v /a ro,relatime - ext4 /dev/sda1 rw,errors=remount-ro',
        '31 1 8:2 / /b rw,relatime - ext4 /dev/sda2 ro',
        '32 1 8:3 / /c rw,relatime - ext4 /dev/sda3 rw,errors=remount-ro',
      ].join('\n'),
    );
    expect(mount).toMatchObject({ readOnly: true, mountReadOnly: true });
    expect(fileSystem).toMatchObject({ readOnly: true, mountReadOnly: false });
    expect(neither).toMatchObject({ readOnly: false, mountReadOnly: false });
  });

  test('shows the topmost of stacked mounts', () => {
    const table = mountTable(
      parseMountinfo(
        '20 1 8:1 / / rw - ext4 a rw\n40 30 8:3 / /m rw - ext4 upper rw\n30 20 8:2 / /m rw - ext4 lower rw\n',
      ),
    );
    expect(table.mountAt('/m')?.source).toBe('upper');
    expect(table.visible().map((e) => e.source)).toEqual(['a', 'upper']);
  });

  test('hides a mount that was mounted over, and shows the upper mount at its path', () => {
    const table = mountTable(
      parseMountinfo(
        '20 1 8:1 / / rw - ext4 a rw\n30 20 8:2 / /d/m rw - ext4 hidden rw\n31 20 8:3 /sub /d rw - ext4 cover rw\n',
      ),
    );
    expect(table.mountAt('/d/m')).toBeUndefined();
    expect(table.mountContaining('/d/m')?.source).toBe('cover');
    expect(table.bindIdentity('/d/m')).toEqual({ device: '8:3', root: '/sub/m' });
    expect(table.mountsBelow('/d').map((e) => e.source)).toEqual(['hidden']);
  });

  test('does not take /database for a path below /data', () => {
    const table = mountTable(parseMountinfo('20 1 8:1 / / rw - ext4 a rw\n30 20 8:2 / /data rw - ext4 b rw\n'));
    expect(table.mountContaining('/database')?.source).toBe('a');
    expect(table.bindIdentity('/database')).toEqual({ device: '8:1', root: '/database' });
    expect(table.bindIdentity('/')).toEqual({ device: '8:1', root: '/' });
  });

  test('reports the same mount point for all copies that propagation makes of a mount', () => {
    const [, , one, copy, bind] = parseMountinfo(
      [
        '20 1 8:1 / / rw shared:1 - ext4 a rw',
        '21 20 8:1 /s /t rw shared:1 - ext4 a rw',
        '30 20 7:0 / /s/x rw shared:2 - xfs l rw',
        '31 21 7:0 / /t/x rw shared:2 - xfs l rw',
        '32 20 7:0 / /mnt rw shared:2 - xfs l rw',
      ].join('\n'),
    );
    const table = mountTable([
      ...parseMountinfo('20 1 8:1 / / rw shared:1 - ext4 a rw\n21 20 8:1 /s /t rw shared:1 - ext4 a rw\n'),
      ...[one, copy, bind].flatMap((e) => e ?? []),
    ]);
    if (one === undefined || copy === undefined || bind === undefined) throw new Error('not parsed');
    expect(table.mountPointIdentity(copy)).toEqual(table.mountPointIdentity(one));
    expect(table.mountPointIdentity(bind)).not.toEqual(table.mountPointIdentity(one));
  });

  test.skipIf(lacks('linux'))("parses every line of this machine's table", async () => {
    expect((await readMountTable()).mountAt('/proc')?.type).toBe('proc');
    // Other tests mount and unmount meanwhile: two reads of the table itself may differ.
    const text = readFileSync('/proc/self/mountinfo', 'utf8');
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-'));
    await writeFile(join(folder.path, 'table'), text);
    const table = await readMountTable(join(folder.path, 'table'));
    expect(table.entries.length).toBe(text.trimEnd().split('\n').length);
  });

  test('refuses an endless table', async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-'));
    await writeFile(join(folder.path, 'table'), 'x'.repeat(100));
    await expect(readBounded(join(folder.path, 'table'), 99)).rejects.toMatchObject({ code: 'exhausted' });
    expect(await readBounded(join(folder.path, 'table'), 100)).toHaveLength(100);
  });
});
