import { expect, test } from 'vitest';
import { readEvents, type ServerEvent } from './sse.ts';

async function read(...chunks: readonly (string | Buffer)[]): Promise<ServerEvent[]> {
  async function* source(): AsyncGenerator<Buffer> {
    for (const chunk of chunks) yield Buffer.from(chunk as string);
  }
  return await Array.fromAsync(readEvents(source()));
}

test('events are the same wherever the stream is split, also within a character or a line end', async () => {
  const bytes = Buffer.from(
    'id: 7\r\nevent: volume.created\r\ndata: {"name":\r\ndata: "ä"}\r\n\r\n: heartbeat\n\ndata:x\n\n',
  );
  const whole = await read(bytes);
  expect(whole).toEqual([
    { id: '7', type: 'volume.created', data: '{"name":\n"ä"}' },
    { id: '7', type: 'message', data: 'x' },
  ]);
  for (let cut = 1; cut < bytes.length; cut++) {
    expect(await read(bytes.subarray(0, cut), bytes.subarray(cut))).toEqual(whole);
  }
});

test('an incomplete event at the end of the stream is dropped', async () => {
  expect(await read('data: a\n\ndata: b\n')).toEqual([{ id: undefined, type: 'message', data: 'a' }]);
});

test('an endless event is refused', async () => {
  await expect(read('data: ', 'x'.repeat(1 << 20), 'x'.repeat(1 << 20))).rejects.toThrow(
    'an event is larger than 1048576 characters',
  );
  await expect(read(`data: ${'x'.repeat(1000)}\n`.repeat(1100))).rejects.toThrow(
    'an event is larger than 1048576 characters',
  );
});
