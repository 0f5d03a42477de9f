import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { anchorImage, anchorImageTar, anchorProgram } from './anchor-image.ts';

const run = promisify(execFile);
let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-anchor-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
});

describe('the image of an anchor', () => {
  test('is a tar with a manifest, a configuration and one layer with one program', async () => {
    writeFileSync(join(folder, 'image.tar'), anchorImageTar('x64'));
    await run('tar', ['-xf', 'image.tar'], { cwd: folder });
    const [manifest] = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8'));
    expect(manifest).toMatchObject({ RepoTags: [anchorImage], Layers: ['layer.tar'] });
    const config = JSON.parse(readFileSync(join(folder, manifest.Config), 'utf8'));
    expect(config).toMatchObject({ architecture: 'amd64', os: 'linux', config: { Entrypoint: ['/anchor'] } });
    const { stdout } = await run('tar', ['-tvf', 'layer.tar'], { cwd: folder });
    expect(stdout).toMatch(/^-rwxr-xr-x 0\/0 +129 .* anchor\n$/);
  });

  test('is reproducible, and differs between processors', () => {
    expect(anchorImageTar('x64')).toEqual(anchorImageTar('x64'));
    expect(anchorImageTar('arm64')).not.toEqual(anchorImageTar('x64'));
    expect(() => anchorImageTar('mips')).toThrow('no anchor');
  });

  test.runIf(process.arch === 'x64' || process.arch === 'arm64')(
    'contains a program that sleeps until it is killed',
    async () => {
      const program = join(folder, 'anchor');
      writeFileSync(program, anchorProgram(process.arch as 'x64'), { mode: 0o755 });
      const child = spawn(program, { stdio: 'ignore' });
      const ended = once(child, 'exit');
      onTestFinished(() => void child.kill('SIGKILL'));
      const state = (): string | undefined =>
        /^State:\s+(\S)/m.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1];
      await vi.waitFor(() => expect(state()).toBe('S'));
      expect(readFileSync(`/proc/${child.pid}/stat`, 'utf8').split(' ')[13]).toBe('0');
      child.kill('SIGKILL');
      expect(await ended).toEqual([null, 'SIGKILL']);
    },
  );
});
