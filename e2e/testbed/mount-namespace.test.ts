import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline/promises';
import { describe, expect, test } from 'vitest';
import { lacks } from './lacks.ts';
import { ownMounts, slaveMounts } from './mount-namespace.ts';

// Mounts, then unmounts while a namespace that was created in between still exists.
const script = [
  'set -e',
  'theirs=$1 inner=$2; shift 2',
  'mount -t tmpfs theirs "$theirs"',
  'unshare "$@" sh -ec \'mount -t tmpfs inner "$1"; echo "$$"; exec sleep 30\' sh "$inner" &',
  'read -r _',
  'umount "$theirs"',
  'echo unmounted',
  'read -r _',
  'kill "$!"',
].join('\n');

const mountsOf = (pid: string | number): string => readFileSync(`/proc/${pid}/mountinfo`, 'utf8');

describe.skipIf(lacks('linux', 'root', 'mount'))('a mount namespace of the test bed', () => {
  test('follows unmounts of the machine, and does not propagate its own mounts', async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-namespace-'));
    const [theirs, inner] = [join(folder.path, 'theirs'), join(folder.path, 'inner')];
    for (const path of [theirs, inner]) await mkdir(path);
    const [unshare = '', ...words] = ownMounts() ?? [];
    const child = spawn(unshare, [...words, 'sh', '-c', script, 'sh', theirs, inner, ...slaveMounts], {
      stdio: ['pipe', 'pipe', 'inherit'],
      timeout: 20_000,
    });
    const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
    const held = String((await lines.next()).value);
    expect(mountsOf(held)).toContain(theirs);
    expect(mountsOf(held)).toContain(inner);
    expect(mountsOf(child.pid ?? 0)).toContain(theirs);
    expect(mountsOf(child.pid ?? 0)).not.toContain(inner);
    expect(mountsOf('self')).not.toContain(folder.path);

    child.stdin.write('\n');
    expect((await lines.next()).value).toBe('unmounted');
    expect(mountsOf(held)).not.toContain(theirs);
    expect(mountsOf(held)).toContain(inner);
    child.stdin.end('\n');
    expect((await lines.next()).done).toBe(true);
  });
});
