import { once } from 'node:events';
import { createServer, request } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, onTestFinished, test } from 'vitest';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { startRecorder } from './recorder.ts';

async function post(socketPath: string, path: string, body: string): Promise<{ status: number; text: string }> {
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; text: string }>();
  const sent = request({ socketPath, path, method: 'POST', agent: false }, (said) => {
    text(said).then((answer) => resolve({ status: said.statusCode ?? 0, text: answer }), reject);
  });
  sent.once('error', reject).end(body);
  return await promise;
}

test('the recorder answers like the plugin behind it, and records the calls', async () => {
  const scratch = createScratchFolder();
  onTestFinished(() => scratch[Symbol.dispose]());
  const [behind, socket] = [join(scratch.folder, 'behind'), join(scratch.folder, 'front')];
  const plugin = createServer((request, answer) => {
    const status = request.url === '/VolumeDriver.Mount' ? 200 : 409;
    void text(request).then((body) => answer.writeHead(status).end(`${request.url} ${body}`));
  });
  plugin.listen(behind);
  await once(plugin, 'listening');
  onTestFinished(() => void plugin.close());
  await using recorder = await startRecorder(socket, behind);
  expect(await post(socket, '/VolumeDriver.Mount', 'a')).toEqual({ status: 200, text: '/VolumeDriver.Mount a' });
  expect(await post(socket, '/VolumeDriver.Remove', '')).toEqual({ status: 409, text: '/VolumeDriver.Remove ' });
  const calls = recorder.take();
  expect(calls.map(({ method }) => method)).toEqual(['Mount', 'Remove']);
  expect(calls.every(({ ms }) => ms > 0)).toBe(true);
  expect(recorder.take()).toEqual([]);
});
