import type { XdrReader } from '../../xdr/reader.ts';
import { isValidName } from '../names.ts';
import { maxNameBytes, maxPathBytes } from '../structures.ts';
import { refuse } from './refusal.ts';

/**
 * Names are bytes. They are kept as strings with one character per byte (latin1), which are compact, easy to compare, and correct
 * for names that are not UTF-8.
 */
export type ByteString = string;

export function readBytes(reader: XdrReader, max: number): ByteString {
  return reader.opaqueView(max).toString('latin1');
}

/** Reads a name. Too long names are not decoding errors, since clients may ask for them: NAMETOOLONG. */
export const readName = (reader: XdrReader): ByteString => readBytes(reader, maxPathBytes);

/** Returns the name if a directory can contain it. */
export function requireValidName(name: ByteString): ByteString {
  if (name.length > maxNameBytes) refuse('NAMETOOLONG');
  if (!isValidName(isAscii(name) ? name : Buffer.from(name, 'latin1'))) refuse('INVAL');
  return name;
}

/** For a new object: `.` and `..` always exist. */
export function requireValidNewName(name: ByteString): ByteString {
  if (name === '.' || name === '..') refuse('EXIST');
  return requireValidName(name);
}

function isAscii(text: ByteString): boolean {
  for (let i = 0; i < text.length; i++) if (text.charCodeAt(i) > 127) return false;
  return true;
}

/** The path for system calls: a string if it is ASCII, otherwise bytes. */
export const toPath = (bytes: ByteString): string | Buffer => (isAscii(bytes) ? bytes : Buffer.from(bytes, 'latin1'));
