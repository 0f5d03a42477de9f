import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import { emptyResult, pluginType, servedPlugins } from '#testing/plugin.ts';
import type { Answer } from '#testing/server.ts';

const it = servedPlugins();

describe('invalid requests', () => {
  const refused = async (answer: Promise<Answer>): Promise<[number, string]> => {
    const { status, text, headers } = await answer;
    expect(headers['content-type']).toBe(pluginType);
    const { Err, ...rest } = JSON.parse(text);
    expect(rest).toEqual({});
    expect(Err).toMatch(/^[^\n]+\. [^\n]+$/);
    return [status, Err];
  };

  test.each([
    ['Get', ''],
    ['Get', '{}'],
    ['Get', '{"Name":""}'],
    ['Get', '{"Name":7}'],
    ['Get', '{"Name":null}'],
    ['Get', '{"name":"a"}'],
    ['Get', '{"__proto__":{"Name":"a"}}'],
    ['Get', '{"Name":"a"'],
    ['Get', '[]'],
    ['Get', 'null'],
    ['Get', '"a"'],
    ['Get', '{"Name":"../../etc"}'],
    ['Get', '{"Name":"a\\u0000b"}'],
    ['Create', '{"Name":"a","Opts":[]}'],
    ['Create', '{"Name":"a","Opts":"size=1"}'],
    ['Create', '{"Name":"a","Opts":{"size":1}}'],
    ['Create', '{"Name":"a/b"}'],
    ['Create', '{"Name":"a\\nb"}'],
    ['Mount', '{"Name":"a"}'],
    ['Mount', '{"ID":"a"}'],
    ['Unmount', '{"Name":"a"}'],
    ['Remove', '{}'],
    ['Path', '{}'],
  ])('%s %s', async (method, raw) => {
    const call = await it.start();
    const [status] = await refused(call.raw('POST', `/VolumeDriver.${method}`, raw));
    expect(status === 400 || status === 404).toBe(true);
    expect(await call('VolumeDriver.List', {})).toMatchObject({ Volumes: [] });
  });

  test('names that are too long and deeply nested JSON are rejected', async () => {
    const call = await it.start();
    const deep = '['.repeat(30_000) + ']'.repeat(30_000);
    for (const raw of [`{"Name":"${'a'.repeat(600)}"}`, deep, `{"Opts":${deep}}`])
      expect((await refused(call.raw('POST', '/VolumeDriver.Create', raw)))[0]).toBe(400);
    expect((await call.raw('POST', '/VolumeDriver.Create', `{"Name":"a","Ignored":${deep}}`)).status).toBe(200);
  });

  test('invalid UTF-8 and other methods, paths and content types are rejected', async () => {
    const call = await it.start();
    const get = '/VolumeDriver.Get';
    expect((await refused(call.raw('POST', get, Buffer.from([0xff, 0, 1, 0xfe]))))[0]).toBe(400);
    for (const verb of ['GET', 'PUT', 'DELETE', 'OPTIONS', 'PATCH']) {
      const answer = call.raw(verb, get);
      expect((await refused(answer))[0]).toBe(405);
      expect((await answer).headers.allow).toBe('POST');
    }
    for (const path of ['/', '/VolumeDriver.Snapshot', '/v1/volumes', '/VolumeDriver.get', '/constructor', '/%'])
      expect((await refused(call.raw('POST', path, '{}')))[0]).toBe(404);
    const typed = (value: string) => call.raw('POST', '/VolumeDriver.List', '{}', { 'content-type': value });
    for (const value of ['text/plain', 'application/x-www-form-urlencoded', 'application/jsonp'])
      expect((await refused(typed(value)))[0]).toBe(415);
    for (const value of [
      'application/json',
      'application/json; charset=utf-8',
      pluginType,
      pluginType.replace('1.2', '1.1'),
      '',
    ])
      expect((await typed(value)).status).toBe(200);
    expect((await refused(call.raw('POST', get, '{}', { expect: 'miracles' })))[0]).toBe(417);
    expect((await refused(call.raw('POST', get, '{}', { x: 'y'.repeat(20_000) })))[0]).toBe(431);
  });

  test('a body that is too large is not read to its end, with or without Content-Length', async () => {
    const call = await it.start();
    const body = JSON.stringify({ Name: 'a', Padding: 'x'.repeat(64 * 1024) });
    expect((await refused(call.raw('POST', '/VolumeDriver.Get', body)))[0]).toBe(413);
    const chunk = `10000\r\n${'x'.repeat(65_536)}\r\n`;
    const head = 'POST /VolumeDriver.Get HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n';
    expect(await said(call.at, head + chunk + chunk)).toMatch(/^HTTP\/1\.1 413 [\s\S]*"Err":"the request is too large/);
  });

  test('malformed and slow requests get an answer, and their connection is closed', async () => {
    const limits = { headersTimeout: 100, requestTimeout: 200, connectionsCheckingInterval: 20 };
    const call = await it.start('stowage-local', { limits });
    expect(await said(call.at, 'GARBAGE\r\n\r\n')).toMatch(/^HTTP\/1\.1 400 [\s\S]*"Err":"the request is malformed/);
    expect(await said(call.at, 'POST /VolumeDriver.Get HTTP/1.1\r\nx: ')).toMatch(/^HTTP\/1\.1 408 /);
    const half = 'POST /VolumeDriver.Get HTTP/1.1\r\ncontent-length: 50\r\n\r\n{"Name"';
    expect(await said(call.at, half)).toMatch(/^HTTP\/1\.1 408 /);
    expect(await said(call.at, '')).toMatch(/^(HTTP\/1\.1 408 |$)/);
    // A client that hangs up during its request.
    const socket = connect(call.at);
    socket.resume().end(half);
    await new Promise((resolve) => socket.once('close', resolve));
    expect(await call('VolumeDriver.List', {})).toMatchObject(emptyResult);
    expect(it.log.lines.filter((line) => line.startsWith('error'))).toEqual([]);
  });
});

/** The whole answer to these bytes. */
function said(at: string, bytes: string): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  const socket = connect(at);
  let text = '';
  socket.on('data', (data) => {
    text += String(data);
  });
  socket.on('error', () => undefined);
  socket.once('close', () => resolve(text));
  socket.write(bytes);
  return promise;
}
