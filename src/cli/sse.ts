import { StringDecoder } from 'node:string_decoder';

export interface ServerEvent {
  readonly id: string | undefined;
  readonly type: string;
  readonly data: string;
}

/** Much more than any event, and little enough memory. */
const maxEvent = 1 << 20;

/** Parses server-sent events as the HTML standard says. Drops comments. */
export async function* readEvents(chunks: AsyncIterable<Buffer>): AsyncGenerator<ServerEvent> {
  const decoder = new StringDecoder('utf8');
  let rest = '';
  let type = '';
  let id: string | undefined;
  let data: string[] = [];
  let length = 0;
  for await (const chunk of chunks) {
    const lines = (rest + decoder.write(chunk)).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line === '') {
        if (data.length > 0) yield { id, type: type === '' ? 'message' : type, data: data.join('\n') };
        type = '';
        data = [];
        length = 0;
        continue;
      }
      const [, field = '', value = ''] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
      length += value.length;
      if (length > maxEvent) throw new RangeError(`an event is larger than ${maxEvent} characters`);
      if (field === 'event') type = value;
      else if (field === 'data') data.push(value);
      else if (field === 'id') id = value;
    }
    if (rest.length > maxEvent) throw new RangeError(`an event is larger than ${maxEvent} characters`);
  }
}
