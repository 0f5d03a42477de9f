/** The scheme of a validated store URI. */
export const schemeOf = (uri: string): string => uri.slice(0, uri.indexOf(':'));
