import { huffmanCodes, staticTable } from './hpack-tables.ts';

export type HeaderField = readonly [name: string, value: string];

/** The peer violated RFC 7541. */
class HpackError extends Error {
  override readonly name = 'HpackError';
}

/** Decodes the header blocks of one connection (RFC 7541), in the order in which they were received. */
export interface HpackDecoder {
  decode(block: Buffer): readonly HeaderField[];
}

/** The default table size, which Node's HTTP/2 uses, too. */
const maxTableBytes = 4_096;
/** RFC 7541, section 4.1: the overhead that counts for each entry. */
const entryOverheadBytes = 32;
const eosSymbol = 256;

export function createHpackDecoder(maxHeaderBytes: number): HpackDecoder {
  const dynamic = createDynamicTable();
  const fieldAt = (index: number): HeaderField => {
    const found = index <= staticTable.length ? staticTable[index - 1] : dynamic.at(index - staticTable.length - 1);
    if (found === undefined) throw new HpackError(`there is no header field ${index}`);
    return found;
  };

  return {
    decode: (block) => {
      const reader = createBlockReader(block);
      const fields: HeaderField[] = [];
      let bytes = 0;
      const add = (one: HeaderField): void => {
        bytes += one[0].length + one[1].length + entryOverheadBytes;
        if (bytes > maxHeaderBytes) throw new HpackError('the headers are too large');
        fields.push(one);
      };
      while (!reader.isAtEnd()) {
        const first = reader.peek();
        if (first >= 0x80) add(fieldAt(reader.integer(7)));
        else if (first >= 0x20 && first < 0x40) dynamic.resize(reader.integer(5));
        else {
          const isIndexed = first >= 0x40;
          const index = reader.integer(isIndexed ? 6 : 4);
          const name = index === 0 ? reader.text() : fieldAt(index)[0];
          const one: HeaderField = [name, reader.text()];
          if (isIndexed) dynamic.put(one);
          add(one);
        }
      }
      return fields;
    },
  };
}

function createDynamicTable() {
  const entries: HeaderField[] = [];
  let maxBytes = maxTableBytes;
  let bytes = 0;
  const sizeOf = ([name, value]: HeaderField): number => name.length + value.length + entryOverheadBytes;
  const shrink = (): void => {
    while (bytes > maxBytes) {
      const oldest = entries.pop();
      bytes -= oldest === undefined ? bytes : sizeOf(oldest);
    }
  };
  return {
    at: (index: number): HeaderField | undefined => entries[index],
    put: (one: HeaderField): void => {
      entries.unshift(one);
      bytes += sizeOf(one);
      shrink();
    },
    resize: (size: number): void => {
      if (size > maxTableBytes) throw new HpackError('the table of headers is larger than was agreed');
      maxBytes = size;
      shrink();
    },
  };
}

function createBlockReader(block: Buffer) {
  let at = 0;
  const byte = (): number => {
    const value = block[at];
    if (value === undefined) throw new HpackError('the headers end in the middle');
    at++;
    return value;
  };
  /** Section 5.1: the value is in the low bits of this byte, or continues in the next bytes if these bits are all set. */
  const integer = (bits: number): number => {
    const maxPrefix = 2 ** bits - 1;
    let value = byte() & maxPrefix;
    if (value < maxPrefix) return value;
    for (let shift = 0; shift <= 21; shift += 7) {
      const next = byte();
      value += (next & 0x7f) * 2 ** shift;
      if (next < 0x80) return value;
    }
    throw new HpackError('a number in the headers is too large');
  };
  return {
    isAtEnd: (): boolean => at >= block.length,
    peek: (): number => block[at] ?? 0,
    integer,
    text: (): string => {
      const isHuffman = (block[at] ?? 0) >= 0x80;
      const length = integer(7);
      if (at + length > block.length) throw new HpackError('the headers end in the middle');
      const bytes = block.subarray(at, at + length);
      at += length;
      return isHuffman ? huffmanText(bytes) : bytes.toString('latin1');
    },
  };
}

function huffmanText(bytes: Buffer): string {
  const text: number[] = [];
  let code = 0;
  let bits = 0;
  for (const byte of bytes) {
    for (let bit = 7; bit >= 0; bit--) {
      code = code * 2 + ((byte >> bit) & 1);
      bits++;
      const symbol = symbolOf(code, bits);
      if (symbol === undefined) continue;
      if (symbol === eosSymbol) throw new HpackError('a string in the headers contains EOS');
      text.push(symbol);
      code = 0;
      bits = 0;
    }
  }
  // Section 5.2: the padding is shorter than a byte and all ones.
  if (bits > 7 || code !== 2 ** bits - 1) throw new HpackError('a text in the headers is cut off');
  return Buffer.from(text).toString('latin1');
}

function symbolOf(code: number, bits: number): number | undefined {
  const codes = huffmanCodes.find((one) => one.bits === bits);
  if (codes !== undefined) return codes.symbols[code - codes.first];
  if (bits > 30) throw new HpackError('a string in the headers is not a Huffman code');
  return undefined;
}

/** Encodes fields as literals without indexing, so that they do not depend on the peer's dynamic table. */
export function encodeAsLiterals(fields: readonly HeaderField[]): Buffer {
  const parts: Buffer[] = [];
  for (const [name, value] of fields) parts.push(Buffer.of(0), textBytes(name), textBytes(value));
  return Buffer.concat(parts);
}

function textBytes(text: string): Buffer {
  const bytes = Buffer.from(text, 'latin1');
  return Buffer.concat([integerBytes(bytes.length), bytes]);
}

function integerBytes(value: number): Buffer {
  if (value < 127) return Buffer.of(value);
  const bytes = [127];
  let rest = value - 127;
  while (rest >= 128) {
    bytes.push((rest % 128) + 128);
    rest = Math.floor(rest / 128);
  }
  return Buffer.from([...bytes, rest]);
}
