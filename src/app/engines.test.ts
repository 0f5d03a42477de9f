import { linkSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import type { VolumeId } from '#core/model.ts';
import type { Records } from '#core/ports.ts';
import { openRecords } from '#records/sqlite.ts';
import { detectSocket, engineSockets } from './engines.ts';

let records: Records;

beforeEach(() => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-engines-'));
  records = openRecords(join(folder, 'state.db'));
  onTestFinished(() => {
    records.close();
    rmSync(folder, { recursive: true });
  });
});

test('an engine that was found or configured once is known at the next start, whether it exists or not', () => {
  const docker = { kind: 'docker', socket: '/nowhere/docker.sock' };
  expect(engineSockets([{ docker: '/nowhere/docker.sock' }], true, records)).toContainEqual(docker);
  expect(engineSockets([], true, records)).toContainEqual(docker);
  // Without `look` nothing is recorded.
  expect(engineSockets([], false, records)).toEqual([]);
});

test('in a container, prefers the socket in the host’s folder if it is the same as the mounted one', () => {
  const root = mkdtempSync(join(tmpdir(), 'stowage-engines-'));
  onTestFinished(() => rmSync(root, { recursive: true }));
  const [bound, there] = [join(root, 'run/docker.sock'), join(root, 'host/run/docker.sock')];
  for (const path of [bound, there]) mkdirSync(dirname(path), { recursive: true });
  expect(detectSocket('docker', root)).toBeUndefined();
  writeFileSync(there, '');
  expect(detectSocket('docker', root)).toBe(there);
  linkSync(there, bound);
  expect(detectSocket('docker', root)).toBe(there);
  rmSync(bound);
  writeFileSync(bound, 'another engine');
  expect(detectSocket('docker', root)).toBe(bound);
});

test('translates a socket path found in a container if Stowage now runs outside', () => {
  records.settings.set('engines.found', JSON.stringify({ podman: '/host/run/podman/other.sock' }));
  expect(engineSockets([], true, records)).toContainEqual({ kind: 'podman', socket: '/run/podman/other.sock' });
});

test('drops the references of an engine that is configured as none', () => {
  const volumeId = 'sv1-00000000-0000-0000-0000-000000000000' as VolumeId;
  const reference = { engine: 'podman', container: 'c', name: 'web', volumeId, running: false };
  records.references.replace('podman', [reference]);
  engineSockets([{ podman: '/nowhere/podman.sock' }], true, records);
  expect(records.references.list()).toHaveLength(1);
  expect(engineSockets([{ podman: 'none' }], true, records).filter(({ kind }) => kind === 'podman')).toEqual([]);
  expect(records.references.list()).toEqual([]);
  expect(engineSockets([], true, records).filter(({ kind }) => kind === 'podman')).toEqual([]);
});
