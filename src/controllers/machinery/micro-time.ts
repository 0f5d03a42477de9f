/** The format MicroTime of Kubernetes. */
export const microTime = (ms: number): string => new Date(ms).toISOString().replace('Z', '000Z');
