import type { XdrReader } from '../../xdr/reader.ts';
import { isValidName } from '../names.ts';
import { maxName, maxPath } from '../structures.ts';
import { refuse } from './refusal.ts';

/**
 * Names are bytes. Here they are strings with one character for each byte (latin1): compact, comparable, and right for
 * names that are not UTF-8.
 */
export type ByteString = string;

export function readBytes(reader: XdrReader, max: number): ByteString {
  return reader.window(max).toString('latin1');
}

/** As it came; longer ones than a directory can hold are told from garbage, since clients may ask for them. */
export const readName = (reader: XdrReader): ByteString => readBytes(reader, maxPath);

/** Steps over a name, and over what it may hold. */
export function checkedName(name: ByteString): ByteString {
  if (name.length > maxName) refuse('NAMETOOLONG');
  if (!isValidName(isAscii(name) ? name : Buffer.from(name, 'latin1'))) refuse('INVAL');
  return name;
}

/** Something is to be made under it: `.` and `..` are always there. */
export function checkedNewName(name: ByteString): ByteString {
  if (name === '.' || name === '..') refuse('EXIST');
  return checkedName(name);
}

function isAscii(text: ByteString): boolean {
  for (let i = 0; i < text.length; i++) if (text.charCodeAt(i) > 127) return false;
  return true;
}

/** For the system: text where that is the same, else bytes. */
export const toPath = (bytes: ByteString): string | Buffer => (isAscii(bytes) ? bytes : Buffer.from(bytes, 'latin1'));
