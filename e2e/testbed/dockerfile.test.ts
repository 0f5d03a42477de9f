import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { repository } from './component.ts';
import { lastStage } from './dockerfile.ts';

test('parses the Dockerfile for users', () => {
  const stage = lastStage(readFileSync(join(repository, 'deploy', 'Dockerfile'), 'utf8'));
  expect(stage.packages).toEqual(['e2fsprogs', 'mount', 'util-linux', 'xfsprogs']);
  expect(stage.config).toMatchObject({
    User: 'stowage',
    Entrypoint: ['stowage'],
    Cmd: ['up'],
    Volumes: { '/var/lib/stowage': {} },
    ExposedPorts: { '7878/tcp': {} },
    Healthcheck: { Test: ['CMD', 'stowage', 'status'], Interval: 30e9, Timeout: 10e9, StartPeriod: 15e9 },
  });
  expect(stage.config.Env).toContain('XDG_STATE_HOME=/var/lib');
  // The folder with all bundles and their native modules for the CPU of the image.
  expect(stage.steps).toContainEqual({ kind: 'copy', from: 'dist', to: '/usr/local/lib/stowage/dist' });
});

test('uses the last stage only', () => {
  const stage = lastStage('FROM a AS b\nRUN one\nFROM c\n# remark\nRUN two \\\n && three\nENTRYPOINT ["x"]\nCMD []\n');
  expect(stage.steps).toEqual([{ kind: 'run', command: 'two   && three' }]);
});

test.each([
  ['ADD x y', 'the test bed does not know the Dockerfile instruction ADD'],
  ['COPY . /all', 'the test bed does not know how to COPY . /all'],
])('%s is refused, because the two images must not differ', (line, message) => {
  expect(() => lastStage(`FROM a\n${line}\nENTRYPOINT ["x"]\nCMD []\n`)).toThrow(message);
});
