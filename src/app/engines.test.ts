import { linkSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import type { VolumeId } from '#core/model.ts';
import type { Records } from '#core/ports.ts';
import { openRecords } from '#records/sqlite.ts';
import { engineSockets, socketOf } from './engines.ts';

let records: Records;

beforeEach(() => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-engines-'));
  records = openRecords(join(folder, 'state.db'));
  onTestFinished(() => {
    records.close();
    rmSync(folder, { recursive: true });
  });
});

test('an engine that was found or named once is known at the next start, there or not', () => {
  const docker = { kind: 'docker', socket: '/nowhere/docker.sock' };
  expect(engineSockets([{ docker: '/nowhere/docker.sock' }], true, records)).toContainEqual(docker);
  expect(engineSockets([], true, records)).toContainEqual(docker);
  // Where nobody is to look, nobody remembers either.
  expect(engineSockets([], false, records)).toEqual([]);
});

test('in a container, the socket in the machine’s folder is taken if it is the one that was given', () => {
  const root = mkdtempSync(join(tmpdir(), 'stowage-engines-'));
  onTestFinished(() => rmSync(root, { recursive: true }));
  const [bound, there] = [join(root, 'run/docker.sock'), join(root, 'host/run/docker.sock')];
  for (const path of [bound, there]) mkdirSync(dirname(path), { recursive: true });
  expect(socketOf('docker', root)).toBeUndefined();
  writeFileSync(there, '');
  expect(socketOf('docker', root)).toBe(there);
  linkSync(there, bound);
  expect(socketOf('docker', root)).toBe(there);
  rmSync(bound);
  writeFileSync(bound, 'another engine');
  expect(socketOf('docker', root)).toBe(bound);
});

test('one that was found in a container is looked for on the machine, where Stowage runs in none', () => {
  records.settings.set('engines.found', JSON.stringify({ podman: '/host/run/podman/other.sock' }));
  expect(engineSockets([], true, records)).toContainEqual({ kind: 'podman', socket: '/run/podman/other.sock' });
});

test('of one that somebody says is not there, nothing counts any more', () => {
  const volumeId = 'sv1-00000000-0000-0000-0000-000000000000' as VolumeId;
  const reference = { engine: 'podman', container: 'c', name: 'web', volumeId, running: false };
  records.references.replace('podman', [reference]);
  engineSockets([{ podman: '/nowhere/podman.sock' }], true, records);
  expect(records.references.list()).toHaveLength(1);
  expect(engineSockets([{ podman: 'none' }], true, records).filter(({ kind }) => kind === 'podman')).toEqual([]);
  expect(records.references.list()).toEqual([]);
  expect(engineSockets([], true, records).filter(({ kind }) => kind === 'podman')).toEqual([]);
});
