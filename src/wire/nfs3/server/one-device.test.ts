import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { requireOneDevice } from './one-device.ts';

describe.skipIf(lacks('mount'))('a directory to export', () => {
  let folder: string;
  const mount = (...args: readonly string[]): void => {
    execFileSync('mount', args);
    onTestFinished(() => void execFileSync('umount', [args.at(-1) ?? '']));
  };

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'stowage-one-device-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    for (const name of ['lower', 'upper', 'seen']) mkdirSync(join(folder, name));
  });

  const mountOverlay = (): void => {
    for (const name of ['data', 'work']) mkdirSync(join(folder, 'upper', name));
    const layers = `lowerdir=${folder}/lower,upperdir=${folder}/upper/data,workdir=${folder}/upper/work`;
    mount('-t', 'overlay', '-o', layers, 'stowage-test', join(folder, 'seen'));
  };

  test('on an overlay of several file systems is refused, and not changed', () => {
    mount('-t', 'tmpfs', '-o', 'size=1m', 'stowage-test', join(folder, 'upper'));
    mountOverlay();
    expect(() => requireOneDevice(join(folder, 'seen'))).toThrow('overlay of several file systems');
    expect(readdirSync(join(folder, 'seen'))).toEqual([]);
  });

  test('on an overlay of one file system, or on no overlay, is accepted', () => {
    mountOverlay();
    requireOneDevice(join(folder, 'seen'));
    requireOneDevice(join(folder, 'lower'));
    expect(readdirSync(join(folder, 'seen'))).toEqual([]);
  });
});
