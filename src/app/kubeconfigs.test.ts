import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { stowageError } from '#core/errors.ts';
import { readKubeconfigs } from './kubeconfigs.ts';

let home: string;
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'stowage-kubeconfigs-'));
  onTestFinished(() => rmSync(home, { recursive: true, force: true }));
});

const write = (name: string, content: object | string): string => {
  const path = join(home, name);
  mkdirSync(join(path, '..'), { recursive: true });
  writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content));
  return path;
};
const read = (about: { readonly file?: string; readonly KUBECONFIG?: string } = {}) =>
  readKubeconfigs({
    file: about.file,
    home,
    env: about.KUBECONFIG === undefined ? {} : { KUBECONFIG: about.KUBECONFIG },
  });
const named = (kind: string, name: string, content: object) => ({ [`${kind}s`]: [{ name, [kind]: content }] });

test("uses kubectl's default file; without one the result is undefined", async () => {
  expect(await read()).toBeUndefined();
  write('.kube/config', 'current-context: mine\ncontexts: []\n');
  expect(await read()).toMatchObject({ 'current-context': 'mine' });
  expect(await read({ KUBECONFIG: '' })).toMatchObject({ 'current-context': 'mine' });
});

test('of several files the first definition wins, and missing files are skipped', async () => {
  const one = write('one', { ...named('cluster', 'a', { server: 'https://first' }), 'current-context': '' });
  const two = write('sub/two', {
    clusters: [
      { name: 'a', cluster: { server: 'https://second', 'insecure-skip-tls-verify': true } },
      { name: 'b', cluster: { server: 'https://other' } },
    ],
    'current-context': 'two',
  });
  const three = write('three', { ...named('user', 'me', { token: 't' }), 'current-context': 'three' });
  const KUBECONFIG = ['', one, join(home, 'missing'), two, one, three].join(':');
  expect(await read({ KUBECONFIG })).toEqual({
    clusters: [
      { name: 'a', cluster: { server: 'https://first' } },
      { name: 'b', cluster: { server: 'https://other' } },
    ],
    users: [{ name: 'me', user: { token: 't' } }],
    contexts: [],
    'current-context': 'two',
  });
});

test('resolves paths relative to their file', async () => {
  const exec = (command: string) => ({ name: command, user: { exec: { command } } });
  const one = write('one/config', {
    ...named('cluster', 'a', { 'certificate-authority': 'pki/ca.crt', 'certificate-authority-data': 'x' }),
    users: [
      { name: 'me', user: { 'client-certificate': '/etc/me.crt', 'client-key': 'me.key', tokenFile: '../token' } },
      exec('aws'),
      exec('./helper'),
    ],
  });
  expect(await read({ KUBECONFIG: one })).toMatchObject({
    clusters: [
      { cluster: { 'certificate-authority': join(home, 'one/pki/ca.crt'), 'certificate-authority-data': 'x' } },
    ],
    users: [
      {
        user: {
          'client-certificate': '/etc/me.crt',
          'client-key': join(home, 'one/me.key'),
          tokenFile: join(home, 'token'),
        },
      },
      { user: { exec: { command: 'aws' } } },
      { user: { exec: { command: join(home, 'one/helper') } } },
    ],
  });
});

test('a file that is named must exist, and is the only one read', async () => {
  write('.kube/config', 'current-context: usual\n');
  const own = write('own', 'current-context: own\n');
  expect(await read({ file: own, KUBECONFIG: write('env', 'current-context: env\n') })).toMatchObject({
    'current-context': 'own',
  });
  const missing = await read({ file: join(home, 'nope') }).then(() => undefined, stowageError);
  expect(missing).toMatchObject({ code: 'invalid', reason: 'kubeconfig-unreadable' });
  expect(missing?.message).toBe(`cannot read the kubeconfig ${join(home, 'nope')} (ENOENT)`);
});

test('errors do not quote the content of a file', async () => {
  const own = write('own', 'users: [{token: very-secret\n');
  const wrong = await read({ file: own }).then(() => undefined, stowageError);
  expect(wrong?.message).toBe(`cannot read the kubeconfig ${own} (it is not YAML)`);
  expect(String(wrong?.stack) + String(wrong?.cause)).not.toContain('very-secret');
});
