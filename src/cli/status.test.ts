import { expect, test } from 'vitest';
import { run, scriptedServer } from './scripted-server.ts';

test('doctor asks the server, and looks for itself when there is none; what is missing is status 1', async () => {
  await using server = await scriptedServer({
    'GET /v1/doctor': [200, { items: [{ check: 'fuse', ok: 'yes', detail: 'there', fix: null }] }],
  });
  expect(await run(server, ['doctor'])).toEqual({ status: 0, stdout: 'ok       fuse: there\n', stderr: '' });
  expect(await run({ socket: '/nonexistent/s.sock' }, ['doctor'])).toEqual({
    status: 1,
    stdout: 'missing  fuse: /dev/fuse is missing\n         fix: modprobe fuse\n',
    stderr: 'no Stowage server answers at /nonexistent/s.sock (ENOENT); looking at this machine without it\n',
  });
});
