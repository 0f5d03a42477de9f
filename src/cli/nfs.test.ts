import { expect, test } from 'vitest';
import type { NfsServed, ProgramServices, UpOptions } from './io.ts';
import { run } from './scripted-server.ts';

const served: NfsServed = {
  directory: '/srv/my data',
  host: '::1',
  port: 20_490,
  path: '/export',
  portmapper: null,
  uri: 'nfs://[::1]/export?port=20490&mountport=20490',
  name: 'network',
  about: { who: 'anybody', as: 'nobody' },
  notes: ['mind the gap'],
};
const nfsServe: ProgramServices['nfsServe'] = async (_options, ready) => {
  ready(served);
  return 0;
};

test('nfs serve prints the export and how to use it', async () => {
  expect(await run(undefined, ['nfs', 'serve', '/x'], { injected: { nfsServe } })).toEqual({
    status: 0,
    stdout: `stowage nfs ready: /srv/my data is /export on [::1]:20490
  who      anybody
  as       nobody

Try next:
  stowage store add network 'nfs://[::1]/export?port=20490&mountport=20490'

`,
    stderr: 'warning: mind the gap\n',
  });
});

test('nfs serve --json prints the export as JSON', async () => {
  const json = await run(undefined, ['nfs', 'serve', '/x', '--json'], { injected: { nfsServe } });
  expect(JSON.parse(json.stdout)).toEqual(served);
  const quiet = await run(undefined, ['nfs', 'serve', '/x', '--quiet'], { injected: { nfsServe } });
  expect(quiet.stdout).toBe(`${served.uri}\n`);
});

test.each<readonly [readonly string[], Partial<UpOptions>]>([
  [[], {}],
  [['--nfs'], { nfs: true }],
  [['--nfs', '20555'], { nfs: true, nfsPort: 20_555 }],
  [['--nfs', '--listen', 'none'], { nfs: true, listen: 'none' }],
])('stowage up %j passes on the options of the NFS server', async (args, expected) => {
  const given: UpOptions[] = [];
  const up = async (options: UpOptions): Promise<number> => given.push(options) - 1;
  expect((await run(undefined, ['up', ...args], { injected: { up } })).status).toBe(0);
  expect(given).toEqual([expected]);
});

test.each(['0', '65536', 'x'])('stowage up --nfs %s is refused', async (port) => {
  const { status, stderr } = await run(undefined, ['up', '--nfs', port]);
  expect(status).toBe(2);
  expect(stderr).toContain(`'${port}' is not a valid number for --nfs`);
});
