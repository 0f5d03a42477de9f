import { randomBytes } from 'node:crypto';
import { readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { type KeeperMount, type KeeperMounts, sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { run } from '#testing/workloads.ts';

/** Makes each call and prints the results as JSON, by the names in the script. */
const scriptHead = `
import errno, json, os, sys
at = sys.argv[1]
said = {}
def tried(name, call, *args):
    try: said[name] = call(*args)
    except OSError as error: said[name] = errno.errorcode[error.errno]
`;

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'python3'))('calls that NFSv3 does not support', () => {
  const exported = exportedByGanesha();

  let mounts: KeeperMounts;
  beforeAll(async () => {
    mounts = await startKeeperMounts();
  });
  afterAll(async () => {
    await mounts?.[Symbol.asyncDispose]();
  });

  const mountExported = async (): Promise<KeeperMount> =>
    await mounts.mount(await sourceOf(exported.server, exported.folder));

  const python = async (script: string, at: string): Promise<unknown> =>
    JSON.parse((await run('python3', ['-c', `${scriptHead}${script}\nprint(json.dumps(said))`, at])).stdout);

  test('extended attributes and ACLs are refused, and copying programs continue', async () => {
    const { at, on } = await mountExported();
    writeFileSync(exported.on('file'), 'data');
    const script = `
path = os.path.join(at, 'file')
for name in ('user.x', 'trusted.x', 'security.x', 'system.posix_acl_access'):
    tried('set ' + name, os.setxattr, path, name, b'value')
    tried('get ' + name, lambda: os.getxattr(path, name).decode())
    tried('remove ' + name, os.removexattr, path, name)
tried('list', os.listxattr, path)
`;
    const refused = Object.fromEntries(
      ['user.x', 'trusted.x', 'security.x', 'system.posix_acl_access'].flatMap((name) =>
        ['set', 'get', 'remove'].map((what) => [`${what} ${name}`, 'ENOTSUP']),
      ),
    );
    // Some kernels report that there is no list instead.
    const nothing = expect.stringMatching(/^(ENOTSUP|ENODATA)$/);
    const expected = { ...refused, list: 'ENOTSUP', 'get system.posix_acl_access': nothing };
    expect(await python(script, at)).toEqual(expected);
    await mounts.killDataPath();
    expect(await python(script, at)).toEqual(expected);
    const outside = join(mounts.folder, 'outside');
    writeFileSync(outside, 'from elsewhere');
    await run('cp', ['-a', outside, on('copied')]);
    await run('cp', ['-a', on('copied'), on('once-more')]);
    expect(readFileSync(exported.on('once-more'), 'utf8')).toBe('from elsewhere');
    await run('umount', [at]);
  });

  test('fallocate is refused and changes nothing', async () => {
    const { at, on } = await mountExported();
    const data = randomBytes(10_000);
    writeFileSync(exported.on('file'), data);
    const modes = [[], ['--keep-size'], ['--punch-hole'], ['--zero-range'], ['--collapse-range'], ['--insert-range']];
    for (const mode of modes)
      await expect(run('fallocate', [...mode, '--offset', '4096', '--length', '4096', on('file')])).rejects.toThrow(
        /not supported|unsupported/,
      );
    expect(readFileSync(exported.on('file')).equals(data)).toBe(true);
    // The C library then writes zeros: the file has the promised length and keeps its data.
    const script = `
file = os.open(os.path.join(at, 'file'), os.O_RDWR)
tried('reserve', os.posix_fallocate, file, 0, 100_000)
tried('size', lambda: os.fstat(file).st_size)
os.close(file)
`;
    expect(await python(script, at)).toEqual({ reserve: null, size: 100_000 });
    expect(readFileSync(exported.on('file'))).toEqual(Buffer.concat([data, Buffer.alloc(90_000)]));
    await run('umount', [at]);
  });

  test('SEEK_HOLE finds no holes: everything counts as data', async () => {
    const { at, on } = await mountExported();
    const script = `
file = os.open(os.path.join(at, 'sparse'), os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 3_000_000)
os.pwrite(file, b'in the middle', 1_500_000)
for offset in (0, 1_000_000, 2_999_999, 3_000_000):
    tried(f'data {offset}', os.lseek, file, offset, os.SEEK_DATA)
    tried(f'hole {offset}', os.lseek, file, offset, os.SEEK_HOLE)
os.close(file)
`;
    expect(await python(script, at)).toEqual({
      'data 0': 0,
      'data 1000000': 1_000_000,
      'data 2999999': 2_999_999,
      'data 3000000': 'ENXIO',
      'hole 0': 3_000_000,
      'hole 1000000': 3_000_000,
      'hole 2999999': 3_000_000,
      'hole 3000000': 'ENXIO',
    });
    for (const way of ['auto', 'always', 'never']) {
      await run('cp', [`--sparse=${way}`, on('sparse'), on(way)]);
      expect(readFileSync(exported.on(way)).equals(readFileSync(exported.on('sparse')))).toBe(true);
    }
    await run('umount', [at]);
  });

  test('copy_file_range is done by the kernel, and every byte is correct', async () => {
    const { at, on } = await mountExported();
    // Copies recently written, unsynced data: into the middle of a file, beyond its end, and within one file.
    const script = `
import random
random.seed(7)
data = random.randbytes(3_000_005)
def opened(name):
    return os.open(os.path.join(at, name), os.O_CREAT | os.O_RDWR)
def copied(one, other, count, from_, to):
    done = 0
    while done < count:
        n = os.copy_file_range(one, other, count - done, from_ + done, to + done)
        if n == 0: break
        done += n
    return done
one, other = opened('one'), opened('other')
os.pwrite(one, data, 0)
os.pwrite(other, b'x' * 1_000_000, 0)
model = bytearray(b'x' * 1_000_000)
def also(count, from_, to):
    piece = data[from_:from_ + count]
    model[len(model):to] = bytes(max(0, to - len(model)))
    model[to:to + len(piece)] = piece
    return len(piece)
for i, how in enumerate([(100_000, 7, 3), (1_500_000, 1_000_001, 999_999), (50, 2_999_990, 4_000_000)]):
    tried(f'copied {i}', lambda: copied(one, other, *how) == also(*how))
tried('same now', lambda: os.pread(other, 5_000_000, 0) == bytes(model))
tried('within', copied, one, one, 1_000_000, 0, 2_000_000)
tried('same within', lambda: os.pread(one, 5_000_000, 0) == data[:2_000_000] + data[:1_000_000] + data[3_000_000:])
tried('overlapping', os.copy_file_range, one, one, 1000, 0, 500)
os.close(one); os.close(other)
with open(os.path.join(at, 'other'), 'rb') as file: said['same when closed'] = file.read() == bytes(model)
`;
    expect(await python(script, at)).toEqual({
      'copied 0': true,
      'copied 1': true,
      'copied 2': true,
      'same now': true,
      'same when closed': true,
      within: 1_000_000,
      'same within': true,
      overlapping: 'EINVAL',
    });
    // The same on the server's disk.
    for (const name of ['one', 'other']) await run('cmp', [on(name), exported.on(name)]);
    await run('cp', ['--reflink=auto', on('other'), on('copied')]);
    await run('cmp', [exported.on('other'), exported.on('copied')]);
    await expect(run('cp', ['--reflink=always', on('other'), on('cloned')])).rejects.toThrow('not supported');
    expect(statSync(exported.on('other')).size).toBe(4_000_015);
    await run('umount', [at]);
  });
});
