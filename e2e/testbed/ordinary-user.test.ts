import { execFileSync } from 'node:child_process';
import { chmod, mkdir, mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from './lacks.ts';
import { asOrdinaryUser } from './ordinary-user.ts';

const output = ([file, args]: readonly [string, readonly string[]]): string =>
  execFileSync(file, args, { encoding: 'utf8', timeout: 10_000 }).trim();

describe.skipIf(lacks('ordinary-user'))('an ordinary user', () => {
  test('is not root and has no capability', () => {
    expect(output(asOrdinaryUser(['id', '-u']))).not.toBe('0');
    expect(output(asOrdinaryUser(['grep', 'CapEff', '/proc/self/status']))).toMatch(/^CapEff:\s+0+$/);
  });
});

describe.skipIf(lacks('root', 'mount'))('a checkout in a folder that only root can enter', () => {
  test('is visible to the ordinary user at the same path, and its siblings are not', async () => {
    await using closed = await mkdtempDisposable(join(tmpdir(), 'stowage-closed-'));
    const checkout = join(closed.path, 'a', 'checkout');
    await mkdir(checkout, { recursive: true });
    await chmod(join(closed.path, 'a'), 0o755);
    await chmod(checkout, 0o755);
    await writeFile(join(checkout, 'file'), 'seen', { mode: 0o644 });
    await writeFile(join(closed.path, 'secret'), 'secret', { mode: 0o644 });
    expect(output(asOrdinaryUser(['cat', join(checkout, 'file')], checkout))).toBe('seen');
    expect(output(asOrdinaryUser(['pwd'], checkout))).toBe(checkout);
    expect(() => output(asOrdinaryUser(['cat', join(closed.path, 'secret')], checkout))).toThrow('No such file');
  });
});
