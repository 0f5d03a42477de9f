import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { expect, test } from 'vitest';
import { keepJournal } from '#testing/journal.ts';
import { head } from './layout.ts';
import { createNodeTable } from './nodes.ts';

const handle = (text: string): Buffer => Buffer.from(text);
const root = handle('root');

test('a successor reads what a killed process wrote', async () => {
  using journal = keepJournal();
  const script = `
    import { openJournal } from ${JSON.stringify(import.meta.resolve('./memory.ts'))};
    import { createNodeTable } from ${JSON.stringify(import.meta.resolve('./nodes.ts'))};
    const nodes = createNodeTable(openJournal(3)).openMount(0, Buffer.from('root'));
    for (let i = 0; ; i++) {
      nodes.addLookup(Buffer.from('file ' + i));
      if (i === 20000) process.kill(process.pid, 'SIGKILL');
    }`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'inherit', 'inherit', journal.fd],
  });
  expect(await once(child, 'exit')).toEqual([null, 'SIGKILL']);
  const table = createNodeTable(journal.open());
  expect(table.size).toBe(20_001);
  expect(table.openMount(0, root).find(handle('file 20000'))?.handle).toEqual(handle('file 20000'));
});

test('openJournal refuses a file that is not a journal and a journal of another version', () => {
  using journal = keepJournal();
  const memory = journal.open();
  memory.view.setUint32(head.version, 99, true);
  expect(() => journal.open()).toThrow('the journal has version 99; this program knows version 1');
  memory.view.setUint32(head.magic, 0, true);
  expect(() => journal.open()).toThrow('not a journal');
});

test("a slot's memory is allocated when touched and can be returned", () => {
  using journal = keepJournal(1);
  const memory = journal.open();
  memory.populate(0);
  const { buffer } = memory.slot(0);
  buffer.fill(1);
  memory.discard(0, 1);
  expect([buffer[0], buffer[4095], buffer[4096], buffer.at(-1)]).toEqual([0, 0, 0, 0]);
});
